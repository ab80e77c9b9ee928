"""The LLM engine over a paged cache."""
