"""Chat templates: where a checkpoint has them, and how they are compiled and rendered safely.

Client text never reaches a template: stand-ins replace it during rendering. Does not decide how
messages are passed to a template; see :mod:`vlmkit_hf.chat`.
"""
