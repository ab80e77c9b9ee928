"""Prompts without answers, and answers to tokens: render, tokenize, generate."""
