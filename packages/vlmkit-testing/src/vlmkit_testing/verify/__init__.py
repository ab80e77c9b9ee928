"""Checks that parts which should agree do: encoders with each other, answers with themselves.

Speaks to registries and runners only, as everybody may, and prints nothing.
"""
