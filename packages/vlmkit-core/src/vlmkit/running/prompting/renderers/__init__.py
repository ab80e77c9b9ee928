"""Prompts made in processes of their own: what travels, who waits for whom, and what ends them."""
