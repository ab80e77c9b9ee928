"""``/v1/batches``: batches of requests in a file, run in the server's spare capacity."""
