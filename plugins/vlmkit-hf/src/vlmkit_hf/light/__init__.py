"""A text side without transformers: what it resolved is written down, and read at later starts.

:mod:`.file` is what is written, :mod:`.reading` knows where; :mod:`.writing` makes it, and compares
both ways before it counts. :mod:`.processor` does to a picture what a family does, by data
(:mod:`.families`, :mod:`.plans`, :mod:`.words`). Conversations, prompts and answers are those of
:mod:`vlmkit_hf.tokenizer` on either way.
"""
