"""Text sides saved as data, so that later starts need no transformers.

:mod:`.file` defines the format, :mod:`.reading` finds and restores a saved text side.
:mod:`.writing` saves one after :mod:`.comparison` finds it equal to that of transformers.
Conversations, prompts and answers are those of :mod:`vlmkit_hf.text_side.tokenizer` either way.
"""
