"""Tokenizer, chat template and image processor of Hugging Face checkpoints, and the hub.

Runs without torch and without torchvision.
"""
