"""Checks that parts which should agree do: encoders with each other, answers with themselves.

Speaks to registries and pipelines only, as everybody may, and prints nothing.
"""
