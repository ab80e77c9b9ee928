"""``/v1/files``: files that clients upload, and use in later requests and batches."""
