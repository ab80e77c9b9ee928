"""What a family's own code makes of a prompt."""
