"""``/v1/batches``: many requests in one file, answered when nobody else wants the room."""
