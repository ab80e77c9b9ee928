"""Control tokens come only from trusted text, even if ordinary text could produce them."""

import threading
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from vlmkit_hf.templates.stand_ins import Segment
from vlmkit_hf.tokens.text_encoder import SLOT, TextEncoder

LETTERS = sorted(set("<end>ab[MG] "))


def unigram() -> Tokenizer:
    """Return a tokenizer whose vocabulary also has ``<end>`` as an ordinary piece."""
    pieces = [("<unk>", 0.0), ("<end>", -1.0), *((letter, -5.0) for letter in LETTERS)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.add_special_tokens([AddedToken("<end>", normalized=False)])
    return tokenizer


def bpe() -> Tokenizer:
    """Return a tokenizer that prefers whole words of its vocabulary, ``<end>`` included."""
    words = [*LETTERS, "<end>"]
    model = models.BPE(vocab={w: i for i, w in enumerate(words)}, merges=[], ignore_merges=True)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken("<end>", normalized=False)])
    return tokenizer


@pytest.mark.parametrize("make", [unigram, bpe])
@settings(max_examples=80)
@given(texts=st.lists(st.sampled_from(["<end>", "<en", "d>", "a", " ", "b"])).map("".join))
def test_an_ordinary_piece_does_not_produce_a_control_token(make: type, texts: str) -> None:
    tokenizer = make()
    encoder = TextEncoder(tokenizer, {"<end>"})
    end = tokenizer.token_to_id("<end>")
    ids = encoder.encode([Segment("<end>", is_client=False), Segment(texts, is_client=True)])

    assert ids.count(end) == 1
    assert ids[0] == end


def test_slots_replace_the_images() -> None:
    encoder = TextEncoder(unigram(), {"<end>"})
    ids = encoder.encode([Segment("a", is_client=True), None, None, Segment("b", is_client=True)])

    assert [i == SLOT for i in ids] == [False, True, True, False]


def test_an_expansion_separates_the_text_around_it() -> None:
    encoder = TextEncoder(unigram(), {"<end>"})
    end = unigram().token_to_id("<end>")
    a = unigram().token_to_id("a")

    assert encoder.expand("b<end>a<end>b") == ("b", (end, a, end), "b")
    assert encoder.expand("ab") is None


def test_long_texts_are_not_cached() -> None:
    """Client white space between template words can be megabytes long."""
    encoder = TextEncoder(bpe(), {"<end>"})
    tracemalloc.start()
    try:
        for num in range(100):
            encoder.encode([Segment("<end>" + " " * (100_000 + num), is_client=False)])
        num_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert num_bytes < 2_000_000


def test_half_a_surrogate_pair_becomes_a_replacement_character() -> None:
    encoder = TextEncoder(unigram(), {"<end>"})

    assert encoder.encode([Segment("a\ud83db", is_client=True)]) == encoder.encode(
        [Segment("a\ufffdb", is_client=True)]
    )


def test_an_encoder_does_not_modify_the_tokenizer() -> None:
    tokenizer = unigram()
    before = tokenizer.to_str()
    TextEncoder(tokenizer, {"<end>"})

    assert tokenizer.to_str() == before


def test_an_encoder_shares_the_vocabulary_and_does_not_truncate() -> None:
    tokenizer = bpe()
    tokenizer.enable_truncation(2)
    encoder = TextEncoder(tokenizer, {"<end>"})
    assert len(encoder.encode([Segment("a b a b", is_client=True)])) == 4

    tokenizer.model.unk_token = "M"  # every user of the tokenizer would see a change
    assert encoder.encode([Segment("?", is_client=True)]) == [tokenizer.token_to_id("M")]


@pytest.mark.parametrize("make", [unigram, bpe])
def test_any_number_of_control_tokens_is_split_in_one_pass(
    make: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, passes = TextEncoder(make(), {"<end>"}), []
    encoded = TextEncoder._encoding

    def noted(self: TextEncoder, text: str, adds_special: bool) -> Any:
        passes.append(len(text))
        return encoded(self, text, adds_special)

    monkeypatch.setattr(TextEncoder, "_encoding", noted)
    ids = encoder.encode([Segment("<end> a " * 3000, is_client=True)])
    assert make().token_to_id("<end>") not in ids
    assert len(passes) <= 3


def test_other_threads_run_during_the_encoding_of_a_long_text() -> None:
    encoder, num_turns, is_over = TextEncoder(bpe(), {"<end>"}), 0, threading.Event()
    text = Segment("a b a b " * 100_000, is_client=True)

    def take_turns() -> None:
        nonlocal num_turns
        while not is_over.wait(0.001):
            num_turns += 1

    thread = threading.Thread(target=take_turns)
    thread.start()
    try:
        encoding = encoder._encoding(text.text, False)
        seen = num_turns
    finally:
        is_over.set()
        thread.join()
    assert len(encoding) == 400_000
    assert seen > 3
