"""A scriptable, deterministic model whose prompts determine its answers."""
