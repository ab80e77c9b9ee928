"""Checks that components agree: encoders with each other, answers with themselves.

It uses registries and runners through their public interfaces, and prints nothing.
"""
