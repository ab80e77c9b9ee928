"""The LLM engine: from work items to forward passes over a paged cache."""
