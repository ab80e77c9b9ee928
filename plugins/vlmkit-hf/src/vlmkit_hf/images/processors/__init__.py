"""Builds the processors of transformers without torch and without torchvision."""
