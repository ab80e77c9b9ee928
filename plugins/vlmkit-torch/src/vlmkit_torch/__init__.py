"""PyTorch LLM engine and vision encoder for vlmkit.

transformers defines the models, this package runs them: paged cache, continuous batching and
chunked prefill for any decoder-only family, with no model code of its own.
"""
