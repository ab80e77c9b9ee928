"""Reads weights and puts them on a device."""
