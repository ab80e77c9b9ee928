"""Image files: types, headers, memory costs, and decoding, also in separate processes.

Public, for media loaders. Nothing here depends on requests or models.
"""
