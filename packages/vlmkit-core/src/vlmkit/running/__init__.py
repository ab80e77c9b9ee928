"""The engine room: a loop, what it drives, and the built-in scheduler and sampler.

Private: the pipeline is its only door.
"""
