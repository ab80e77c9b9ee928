"""The 269 tokens of the mock: every byte, and thirteen that no text can produce.

Defines ids and their meaning; the tokenizer formats conversations.
"""

NUM_BYTES = 256
END = 256  # ends a message, and so an answer
BEGIN = 257
SYSTEM = 258
USER = 259
ASSISTANT = 260
TOOL = 261
IMAGE_START = 262
IMAGE = 263
IMAGE_END = 264
REASONING = 265
REASONING_END = 266
CALL = 267
CALL_END = 268
VOCAB_SIZE = 269

ROLES = {"system": SYSTEM, "user": USER, "assistant": ASSISTANT, "tool": TOOL}
SPECIAL_TOKENS = {
    "<|end|>": END,
    "<|begin|>": BEGIN,
    "<|system|>": SYSTEM,
    "<|user|>": USER,
    "<|assistant|>": ASSISTANT,
    "<|tool|>": TOOL,
    "<|image_start|>": IMAGE_START,
    "<|image|>": IMAGE,
    "<|image_end|>": IMAGE_END,
    "<|reasoning|>": REASONING,
    "<|reasoning_end|>": REASONING_END,
    "<|call|>": CALL,
    "<|call_end|>": CALL_END,
}
SPELLINGS = {token_id: text for text, token_id in SPECIAL_TOKENS.items()}
EOS_IDS = frozenset({END})
MARKS = frozenset({REASONING, REASONING_END, CALL, CALL_END})
BANNED_IDS = frozenset(SPECIAL_TOKENS.values()) - EOS_IDS - MARKS
