"""The LLM engine over one decoder graph."""
