"""What outlives the process: a folder with a database and with files, and how much room it has."""
