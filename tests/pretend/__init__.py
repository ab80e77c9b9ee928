"""Devices that are not there, for tests: data of the host that keeps a device's rules.

What would be a mistake on a device (memory of two places in one call, an input that was written
after it was bound) is one here, though everything is computed on the CPU. Says nothing about the
kernels of a device, its speed or its rounding.
"""
