"""Limits the tokens of an image, with the settings of its family's image processor.

Each kind of limit has a module. ``find`` selects one by the processor's settings, and the image
side checks it at load. A family without a supported kind has one size for each image.
"""
