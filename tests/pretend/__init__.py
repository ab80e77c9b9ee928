"""Simulated devices for tests: data of the host that obeys the rules of a device.

A mistake on a device is an error here, too, although the CPU computes everything. Examples are
tensors of two devices in one call, and an input that is written after it was bound. Kernels, speed
and rounding of a device are not simulated.
"""
