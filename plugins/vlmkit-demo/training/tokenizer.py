"""The demo model's tokenizer: the words of the task as single tokens, any other text as bytes.

    python training/tokenizer.py

learns the vocabulary from generated conversations and writes ``tokenizer.json`` into the
checkpoint folder. Consecutive capital letters, digits and unknown bytes are separate tokens, so the
model reads printed words letter by letter.
"""

from pathlib import Path

import numpy as np
from phrasing import SYSTEMS
from question import ASKS, PhraseChooser, ask_pair, small_talk
from scene import sample_scene
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

CHECKPOINT = Path(__file__).parent.parent / "src" / "vlmkit_demo" / "checkpoint"
PAD, END, SYSTEM, USER, ASSISTANT, IMAGE = SPECIAL = (
    "<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<image>",
)  # fmt: skip
_PIECE = r"[A-Z](?![a-z])| ?[A-Z]?[a-z]+| ?[^\sA-Za-z0-9]+|[0-9]|\s+(?=[A-Z0-9])|\s+"


def load_tokenizer() -> Tokenizer:
    """Read the shipped tokenizer."""
    return Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))


def special_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the ids of the special tokens."""
    return {token: int(tokenizer.token_to_id(token) or 0) for token in SPECIAL}


def learn_tokenizer(conversations: int = 30000, vocabulary: int = 1024) -> Tokenizer:
    """Learn the vocabulary from training conversations."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECE), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, min_frequency=12, special_tokens=list(SPECIAL), show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )  # fmt: skip
    tokenizer.train_from_iterator(_corpus(conversations), trainer)
    return tokenizer


def _corpus(conversations: int) -> list[str]:
    rng = np.random.default_rng(0)
    ask = PhraseChooser(rng, "train")
    texts = list(SYSTEMS) * 20
    asks = list(ASKS.values())
    for i in range(conversations):
        scene = sample_scene(rng)
        turns = (
            small_talk(ask)[1] if i % 12 == 0
            else ask_pair((scene, sample_scene(rng)), ask) if i % 12 == 1
            else asks[i % len(asks)](scene, ask)
        )  # fmt: skip
        texts += [text for turn in turns or () for text in turn]
    return texts


if __name__ == "__main__":
    CHECKPOINT.mkdir(parents=True, exist_ok=True)
    learn_tokenizer().save(str(CHECKPOINT / "tokenizer.json"))
