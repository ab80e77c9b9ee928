"""Image files before they are pixels: headers, memory bounds, and decoders in processes.

Public, for media loaders. Nothing here knows a request or a model.
"""
