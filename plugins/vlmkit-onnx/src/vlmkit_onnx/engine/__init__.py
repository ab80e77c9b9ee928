"""The LLM engine: one decoder graph over the slots of a cache."""
