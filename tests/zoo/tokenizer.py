"""Small trained tokenizers of the three kinds that the families use.

* ``byte_level``: byte-level BPE, as in Llama 3, Qwen, GLM, GPT-OSS.
* ``sentencepiece``: BPE over characters with byte fallback and a space put before the text, as in
  Llama 2, Vicuna, Mistral 7B, Phi 3.
* ``gemma``: the same without the leading space.

They have merges, so that text on both sides of a careless cut gets different tokens.
"""

import json
from collections.abc import Mapping, Sequence

from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

CORPUS = [
    "USER: What is in this picture? ASSISTANT: A small red square on the left of a blue circle.",
    "system\nYou are a helpful assistant.\nuser\nHow many objects are there?\nassistant\nThree.",
    "User: Describe the image in one sentence.\nAssistant: There is a green triangle above it.",
    "What is the weather in the city? The answer is that it is raining, and the sky is grey.",
    '{"type": "function", "function": {"name": "look_up", "description": "Find a word"}}',
    "model\n\nfinal analysis message: the picture shows the same thing as the one before.\n\n",
]
NUM_MERGES = 110


def byte_level(
    special: Sequence[str | AddedToken],
    *,
    named: Mapping[str, str],
    extra: Mapping[str, str] | None = None,
    plain: Sequence[str] = (),
    adds_bos: bool = False,
) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer.

    Args:
        special: special tokens, in the order of their ids.
        named: which of them are ``bos_token``, ``eos_token``, ``pad_token``.
        extra: further attributes of the tokenizer, such as ``image_token``.
        plain: added tokens that are not special, such as ``<think>``.
        adds_bos: whether encoding puts the begin-of-sequence token first.
    """
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    _train(tokenizer, alphabet, len(alphabet) + NUM_MERGES)
    return _wrap(tokenizer, special, named, extra, plain, adds_bos)


def sentencepiece(
    special: Sequence[str | AddedToken],
    *,
    named: Mapping[str, str],
    extra: Mapping[str, str] | None = None,
    plain: Sequence[str] = (),
    adds_bos: bool = True,
    is_legacy: bool = True,
) -> PreTrainedTokenizerFast:
    """Return a BPE tokenizer that puts a space before the text.

    ``is_legacy`` puts one after each special token too, as the first Llama tokenizers do.
    See :func:`byte_level` for the other arguments.
    """
    tokenizer = _byte_fallback()
    if is_legacy:
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return _wrap(tokenizer, special, named, extra, plain, adds_bos)


def gemma(
    special: Sequence[str | AddedToken],
    *,
    named: Mapping[str, str],
    extra: Mapping[str, str] | None = None,
    plain: Sequence[str] = (),
    adds_bos: bool = True,
) -> PreTrainedTokenizerFast:
    """Return a BPE tokenizer that keeps spaces as they are; see :func:`byte_level`."""
    tokenizer = _byte_fallback()
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return _wrap(tokenizer, special, named, extra, plain, adds_bos)


def _byte_fallback() -> Tokenizer:
    """Return an untreated BPE whose vocabulary holds every byte and the corpus's characters."""
    tokenizer = Tokenizer(BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", behavior="merged_with_next")
    as_bytes = [f"<0x{byte:02X}>" for byte in range(256)]
    letters = sorted({"▁", *"".join(CORPUS).replace(" ", "")})
    size = len(as_bytes) + len(letters) + NUM_MERGES
    _train(tokenizer, letters, size, first=["<unk>", *as_bytes])
    tokenizer.pre_tokenizer = None
    return tokenizer


def _train(
    tokenizer: Tokenizer, alphabet: Sequence[str], size: int, first: Sequence[str] = ()
) -> None:
    trainer = BpeTrainer(
        vocab_size=size,
        initial_alphabet=list(alphabet),
        special_tokens=list(first),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    if first:  # they were needed for their places in the vocabulary, not as added tokens
        clean = BPE(
            vocab=tokenizer.get_vocab(),
            merges=_merges(tokenizer),
            byte_fallback=True,
            fuse_unk=True,
            unk_token="<unk>",
        )
        tokenizer.model = clean


def _merges(tokenizer: Tokenizer) -> list[tuple[str, str]]:
    return [tuple(merge) for merge in json.loads(tokenizer.to_str())["model"]["merges"]]


def _wrap(
    tokenizer: Tokenizer,
    special: Sequence[str | AddedToken],
    named: Mapping[str, str],
    extra: Mapping[str, str] | None,
    plain: Sequence[str],
    adds_bos: bool,
) -> PreTrainedTokenizerFast:
    fresh = Tokenizer.from_str(_without_added_tokens(tokenizer))
    fresh.add_special_tokens(
        [t if isinstance(t, AddedToken) else AddedToken(t, normalized=False) for t in special]
    )
    fresh.add_tokens([AddedToken(t, normalized=False, special=False) for t in plain])
    if adds_bos:
        bos = named["bos_token"]
        fresh.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, fresh.token_to_id(bos))]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=fresh,
        clean_up_tokenization_spaces=False,
        extra_special_tokens=dict(extra or {}),
        **named,
    )


def _without_added_tokens(tokenizer: Tokenizer) -> str:
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = []
    return json.dumps(content)
