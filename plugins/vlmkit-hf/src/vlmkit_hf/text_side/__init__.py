"""The tokenizer component of one checkpoint: prompts from conversations, text from tokens.

Joins chat template, token encoder and image side. transformers resolves the parts;
:mod:`vlmkit_hf.saved` restores them without transformers.
"""
