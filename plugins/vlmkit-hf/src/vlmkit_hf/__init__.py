"""Tokenizer, chat template and image processor of Hugging Face checkpoints, and the hub itself.

Runs without torch and without torchvision.
"""
