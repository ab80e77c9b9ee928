"""Storage that outlives the process: a data folder with a database and files, and its limits."""
