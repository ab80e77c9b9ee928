"""The tokenizer of a model in a GGUF file alone, as ``tokenizer.json`` of the library tokenizers.

Covers byte-level BPE (``gpt2``) with the pre-tokenizers of a table, and SentencePiece's BPE
(``llama``). Other tokenizers and pre-tokenizers are rejected by name: llama.cpp computes each by
code of its own. Sources: ``llama-vocab.cpp`` of llama.cpp for the fields and their defaults, and
the ``tokenizer.json`` files of the models for patterns. Encodes nothing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from vlmkit_quantized.gguf_metadata import Metadata

Json = dict[str, Any]
MAX_TOKENS = 2**20
MAX_LETTERS = 2**10  # of a token
MAX_ADDED_LETTERS = 2**20  # of all added tokens; the library tokenizers takes 140 bytes for each
MAX_PIECE = 256  # letters of a piece of SentencePiece; all of its splits are looked up
MAX_SPLITS = 2**24  # of all pieces; those of 256,000 tokens have 2 million
MAX_MERGES = 2**21
SPACE = "\u2581"
BYTE_LEVEL, SENTENCEPIECE = "gpt2", "llama"


class Kind(IntEnum):
    """The kinds of tokens in ``tokenizer.ggml.token_type``."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + TAIL
QWEN2 = LLAMA3.replace("{1,3}", "")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
BEFORE_WORD = r"[^\r\n\p{L}\p{N}]?"
TEKKEN = (
    rf"{BEFORE_WORD}{UPPER}*{LOWER}+|{BEFORE_WORD}{UPPER}+{LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + TAIL
)
GPT_4O = (
    rf"{BEFORE_WORD}{UPPER}*{LOWER}+{CONTRACTIONS}?|{BEFORE_WORD}{UPPER}+{LOWER}*{CONTRACTIONS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + TAIL
)


@dataclass(frozen=True, slots=True)
class Splitting:
    """How text is split before BPE, and what else a model's tokenizer does.

    Attributes:
        pattern: of parts; empty for the pattern of GPT-2.
        splits_digits: whether each digit is a part.
        composes: whether letters with marks are composed (NFC).
        ignores_merges: whether a whole part in the vocabulary is a token, whatever its merges.
        adds_begin: whether a text begins with a token, unless the file says otherwise.
    """

    pattern: str = ""
    splits_digits: bool = False
    composes: bool = False
    ignores_merges: bool = False
    adds_begin: bool = False


OF_LLAMA3 = Splitting(LLAMA3, ignores_merges=True, adds_begin=True)
OF_QWEN2 = Splitting(QWEN2, composes=True)
DIGITS = Splitting(splits_digits=True)
SPLITTINGS: Mapping[str, Splitting] = {
    "command-r": Splitting(splits_digits=True, composes=True),
    "dbrx": Splitting(LLAMA3),
    "deepseek-r1-qwen": OF_QWEN2,
    "glm4": Splitting(LLAMA3),
    "gpt-2": Splitting(),
    "gpt-4o": Splitting(GPT_4O),
    "llama-bpe": OF_LLAMA3,
    "llama-v3": OF_LLAMA3,
    "llama3": OF_LLAMA3,
    "megrez": OF_QWEN2,
    "qwen2": OF_QWEN2,
    "refact": DIGITS,
    "smaug-bpe": OF_LLAMA3,
    "smollm": DIGITS,
    "starcoder": DIGITS,
    "tekken": Splitting(TEKKEN, ignores_merges=True, adds_begin=True),
}
"""By the name in ``tokenizer.ggml.pre``."""

PLAIN_OF_PHI3 = ("<s>", "<unk>", "<|endoftext|>")
"""Control tokens of Phi 3 that do not swallow the white space behind them; all others do."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens of a file.

    Attributes:
        tokens: by their ids.
        kinds: of the tokens.
    """

    tokens: list[str]
    kinds: list[int]

    def of_kinds(self, *kinds: Kind) -> Iterator[tuple[int, str]]:
        """Yield ids and tokens of some kinds."""
        wanted = set(kinds)
        for number, (token, kind) in enumerate(zip(self.tokens, self.kinds, strict=True)):
            if kind in wanted:
                yield number, token


def tokenizer_of(found: Metadata) -> tuple[Json, Json]:
    """Return the content of ``tokenizer.json`` and of ``tokenizer_config.json``.

    Raises:
        FormatError: the tokenizer is not supported, or contradicts itself.
    """
    kind = found.text("tokenizer.ggml.model")
    if kind not in (BYTE_LEVEL, SENTENCEPIECE):
        raise found.error(
            f"has a tokenizer {kind!r}, which is not supported; supported are {BYTE_LEVEL!r} and "
            f"{SENTENCEPIECE!r}"
        )
    vocabulary = _vocabulary(found)
    make = _bpe_of_bytes if kind == BYTE_LEVEL else _bpe_of_pieces
    parts = make(found, vocabulary)
    settings = _settings(found, vocabulary)
    whole = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added(found, vocabulary, is_pieces=kind == SENTENCEPIECE),
        **parts,
    }
    return whole, settings


def _vocabulary(found: Metadata) -> Vocabulary:
    tokens = found.texts("tokenizer.ggml.tokens")
    if not 0 < len(tokens) <= MAX_TOKENS:
        raise found.error(f"has {len(tokens)} tokens, and 1 to {MAX_TOKENS} are supported")
    table = found.file.tensors.get("token_embd.weight")
    if table is not None and table.shape[0] != len(tokens):
        raise found.error(
            f"has {len(tokens)} tokens in 'tokenizer.ggml.tokens', and {table.shape[0]} embeddings"
        )
    if (num := max(map(len, tokens))) > MAX_LETTERS:
        raise found.error(
            f"has a token of {num} letters in 'tokenizer.ggml.tokens', and {MAX_LETTERS} are "
            "supported"
        )
    kinds = found.numbers("tokenizer.ggml.token_type", len(tokens))
    if unknown := set(kinds) - set(Kind):
        raise found.error(
            f"has tokens of the unknown type {min(unknown)} in 'tokenizer.ggml.token_type'"
        )
    used = [token for token, kind in zip(tokens, kinds, strict=True) if kind != Kind.UNUSED]
    if len(set(used)) != len(used) or not all(used):
        raise found.error("has two equal tokens, or an empty one")
    return Vocabulary(tokens, kinds)


def _settings(found: Metadata, vocabulary: Vocabulary) -> Json:
    """Return names of special tokens."""
    names = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    settings: Json = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": found.integer(found.of_model("context_length")),
    }
    for name, stored in names.items():
        token = _special(found, vocabulary, stored)
        if token is not None:
            settings[f"{name}_token"] = token
    return settings


def _special(found: Metadata, vocabulary: Vocabulary, name: str) -> str | None:
    """Return a special token; None if the file states none."""
    key = f"tokenizer.ggml.{name}_token_id"
    if not found.has(key):
        return None
    number = found.integer(key)
    if number >= len(vocabulary.tokens):
        raise found.error(f"has {len(vocabulary.tokens)} tokens, and {number} in {key!r}")
    return vocabulary.tokens[number]


def _added(found: Metadata, vocabulary: Vocabulary, *, is_pieces: bool) -> list[Json]:
    """Return the tokens that are found in a text before it is split."""
    swallows = found.architecture == "phi3" and is_pieces
    kinds = (Kind.UNKNOWN, Kind.CONTROL, Kind.USER_DEFINED)
    if (num := sum(len(token) for _, token in vocabulary.of_kinds(*kinds))) > MAX_ADDED_LETTERS:
        raise found.error(
            f"has control tokens of {num} letters in 'tokenizer.ggml.tokens', and "
            f"{MAX_ADDED_LETTERS} are supported"
        )
    return [
        {
            "id": number,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": swallows and token not in PLAIN_OF_PHI3,
            "normalized": False,
            "special": vocabulary.kinds[number] != Kind.USER_DEFINED,
        }
        for number, token in vocabulary.of_kinds(*kinds)
    ]


def _around(found: Metadata, vocabulary: Vocabulary, *, adds_begin: bool) -> Json | None:
    """Return what adds tokens before and behind a text; None if nothing does."""
    sequence: list[Json] = [{"Sequence": {"id": "A", "type_id": 0}}]
    second: list[Json] = [{"Sequence": {"id": "B", "type_id": 1}}]
    special: Json = {}
    for name, is_default in (("bos", adds_begin), ("eos", False)):
        if not found.flag(f"tokenizer.ggml.add_{name}_token", default=is_default):
            continue
        token = _special(found, vocabulary, name)
        if token is None:
            raise found.error(f"adds a token to each text, and has no {name}_token_id")
        number = found.integer(f"tokenizer.ggml.{name}_token_id")
        special[token] = {"id": token, "ids": [number], "tokens": [token]}
        for parts, kind in ((sequence, 0), (second, 1)):
            place = 0 if name == "bos" else len(parts)
            parts.insert(place, {"SpecialToken": {"id": token, "type_id": kind}})
    if not special:
        return None
    return {
        "type": "TemplateProcessing",
        "single": sequence,
        "pair": [*sequence, *second],
        "special_tokens": special,
    }


def _bpe_of_bytes(found: Metadata, vocabulary: Vocabulary) -> Json:
    name = found.text("tokenizer.ggml.pre", "")
    if (how := SPLITTINGS.get(name)) is None:
        raise found.error(
            f"splits texts by {name or 'no name'!r} ('tokenizer.ggml.pre'), which is not "
            f"supported; supported are {', '.join(SPLITTINGS)}"
        )
    numbers = {token: number for number, token in vocabulary.of_kinds(Kind.NORMAL, Kind.BYTE)}
    whole: Json = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    parts: list[Json] = [whole | {"use_regex": not how.pattern}]
    if how.pattern:
        pattern = {"Regex": how.pattern}
        split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
        parts.insert(0, split)
    if how.splits_digits:
        parts.insert(0, {"type": "Digits", "individual_digits": True})
    return {
        "normalizer": {"type": "NFC"} if how.composes else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": parts},
        "post_processor": _around(found, vocabulary, adds_begin=how.adds_begin),
        "decoder": whole | {"use_regex": True},
        "model": _bpe(numbers, _stated_merges(found, numbers), ignores_merges=how.ignores_merges),
    }


def _stated_merges(found: Metadata, numbers: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return the merges of a file; all of their tokens must be in the vocabulary."""
    merges = []
    for merge in found.texts("tokenizer.ggml.merges"):
        first, _, second = merge.partition(" ")
        if not (first in numbers and second in numbers and first + second in numbers):
            raise found.error(f"merges tokens that it does not have: {merge[:80]!r}")
        merges.append((first, second))
    if not merges:
        raise found.error("has no 'tokenizer.ggml.merges'")
    return merges


def _bpe_of_pieces(found: Metadata, vocabulary: Vocabulary) -> Json:
    unknown = _special(found, vocabulary, "unknown") or next(
        (token for _, token in vocabulary.of_kinds(Kind.UNKNOWN)), None
    )
    numbers = {
        token: number
        for number, token in vocabulary.of_kinds(*(kind for kind in Kind if kind != Kind.UNUSED))
    }
    normalizers: list[Json] = [{"type": "Replace", "pattern": {"String": " "}, "content": SPACE}]
    decoders: list[Json] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if found.flag("tokenizer.ggml.add_space_prefix", default=True):
        normalizers.insert(0, {"type": "Prepend", "prepend": SPACE})
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    model = _bpe(numbers, _merges_of_scores(found, vocabulary))
    return {
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": None,
        "post_processor": _around(found, vocabulary, adds_begin=True),
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": model | {"unk_token": unknown, "fuse_unk": True, "byte_fallback": True},
    }


def _merges_of_scores(found: Metadata, vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Return the merges that SentencePiece's BPE does: those to pieces of the highest score first.

    Pieces of equal scores are in the order of their ids. Control tokens are never merged to.
    """
    scores = found.numbers("tokenizer.ggml.scores", len(vocabulary.tokens))
    pieces = {token: number for number, token in vocabulary.of_kinds(Kind.NORMAL)}
    if any(score != score for score in scores):  # noqa: PLR0124 - true of what is no number
        raise found.error("has a score that is no number in 'tokenizer.ggml.scores'")
    if long := next((piece for piece in pieces if len(piece) > MAX_PIECE), None):
        raise found.error(f"has a piece of {len(long)} letters, and {MAX_PIECE} are supported")
    if sum(map(len, pieces)) > MAX_SPLITS:
        raise found.error(f"has pieces of over {MAX_SPLITS} letters in 'tokenizer.ggml.tokens'")
    merges: list[tuple[str, str]] = []
    for piece, _ in sorted(pieces.items(), key=lambda item: (-scores[item[1]], item[1])):
        halves = ((piece[:at], piece[at:]) for at in range(1, len(piece)))
        known = [pair for pair in halves if pair[0] in pieces and pair[1] in pieces]
        merges += sorted(known, key=lambda pair: (pieces[pair[0]], pieces[pair[1]]))
        if len(merges) > MAX_MERGES:
            raise found.error(
                f"has pieces in 'tokenizer.ggml.tokens' that are joined in over {MAX_MERGES} ways"
            )
    return merges


def _bpe(
    numbers: Mapping[str, int], merges: list[tuple[str, str]], *, ignores_merges: bool = False
) -> Json:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": ignores_merges,
        "vocab": dict(numbers),
        "merges": merges,
    }
