"""Loads HEIC images for models of vlmkit."""
