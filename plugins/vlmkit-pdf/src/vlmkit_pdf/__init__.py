"""Loads the pages of PDF files as images for models of vlmkit."""
