"""With one mechanism switched off, parity must break: this shows that the comparison can fail."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from parity import runner
from vlmkit.errors import CheckpointError
from vlmkit_torch.attention import paged
from vlmkit_torch.engine import capacity
from vlmkit_torch.prompts import layout, prompt_reader

pytestmark = pytest.mark.torch

Saved = Callable[[str], Path]
Answered = Callable[[str], list[runner.Answer]]
Patch = pytest.MonkeyPatch
PromptReader = prompt_reader.PromptReader


def off(patch: Patch, owner: Any, name: str, change: Callable[[Any], Any]) -> None:
    """Let a function's result pass through ``change``."""
    made = getattr(owner, name)
    patch.setattr(owner, name, lambda *args, **kwargs: change(made(*args, **kwargs)))


def without_arguments(patch: Patch, *names: str) -> None:
    """Let attention forget some of its arguments."""
    attend = paged.attend

    def forgetful(*args: Any, **kwargs: Any) -> Any:
        return attend(*args, **{**kwargs, **dict.fromkeys(names)})

    patch.setattr(paged, "attend", forgetful)


def bidirectional_off(patch: Patch) -> None:
    off(patch, PromptReader, "layout", lambda layout: replace(layout, views={}))


def positions_off(patch: Patch) -> None:
    off(patch, PromptReader, "layout", lambda layout: replace(layout, positions=None, offset=0))


def decode_offset_off(patch: Patch) -> None:
    off(patch, PromptReader, "layout", lambda layout: replace(layout, offset=0))


def deepstack_off(patch: Patch) -> None:
    off(patch, PromptReader, "embeds", lambda e: replace(e, visual=None, per_visual={}))


def window_off(patch: Patch) -> None:
    without_arguments(patch, "sliding_window")
    off(patch, capacity, "layer_kinds", lambda kinds: [k._replace(window=None) for k in kinds])


def softcap_off(patch: Patch) -> None:
    without_arguments(patch, "softcap")


def sinks_off(patch: Patch) -> None:
    without_arguments(patch, "s_aux")


def spans_off(patch: Patch) -> None:
    off(patch, layout.Layout, "spans", lambda _: ())


def images_blank(patch: Patch) -> None:
    off(patch, prompt_reader, "compose", _zeroed)


def _zeroed(output: Any) -> Any:
    kept = output.pooler_output
    rows = [torch.zeros_like(r) for r in kept] if isinstance(kept, list) else torch.zeros_like(kept)
    output.pooler_output = rows
    return output


CASES = [
    (bidirectional_off, "gemma3"),
    (bidirectional_off, "paligemma"),
    (spans_off, "gemma3"),
    (spans_off, "paligemma"),
    (positions_off, "qwen2_vl"),
    (positions_off, "qwen2_5_vl"),
    (positions_off, "qwen3_vl"),
    (positions_off, "glm4v"),
    (decode_offset_off, "qwen2_vl"),
    (decode_offset_off, "glm4v"),
    (deepstack_off, "qwen3_vl"),
    (window_off, "mistral"),
    (window_off, "mixtral"),
    (window_off, "phi3"),
    (window_off, "gemma2"),
    (window_off, "gemma3_text"),
    (window_off, "gpt_oss"),
    (softcap_off, "gemma2"),
    (sinks_off, "gpt_oss"),
    (images_blank, "llava"),
    (images_blank, "llava_next"),
    (images_blank, "idefics3"),
    (images_blank, "smolvlm"),
    (images_blank, "mistral3"),
    (images_blank, "internvl"),
]


@pytest.mark.parametrize(
    ("switch", "name"), [pytest.param(s, n, id=f"{s.__name__}-{n}") for s, n in CASES]
)
def test_parity_breaks_without(
    switch: Callable[[Patch], None],
    name: str,
    saved: Saved,
    answered: Answered,
    monkeypatch: Patch,
) -> None:
    switch(monkeypatch)
    outcome = runner.outcome(name, saved(name), answered(name), self_check=False, step_tokens=9)

    assert not outcome.is_parity, outcome
    assert outcome.difference > 1e-2, outcome


def test_equal_digests_of_different_images_would_mix_up_answers(
    saved: Saved, answered: Answered
) -> None:
    engine, encoder, config = runner.load_engine("llava", saved("llava"), cache_tokens=2000)
    asked = runner.requests("llava")[0]
    other = replace(asked, images=[runner.zoo.picture(99)])
    first, second = (
        runner.prompt("llava", request, config.image_token_id) for request in (asked, other)
    )
    wrong = replace(second, media=(replace(second.media[0], digest=first.media[0].digest),))
    banned = runner.banned_ids(config)

    own = runner.run(engine, encoder, [first], banned)[0]
    right = runner.run(engine, encoder, [second], banned)[0]
    mixed = runner.run(engine, encoder, [wrong], banned)[0]

    assert (right.logits[0] - own.logits[0]).abs().max() > 1e-2
    assert (mixed.logits[0] - own.logits[0]).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("switch", "name"),
    [(softcap_off, "gemma2"), (sinks_off, "gpt_oss"), (window_off, "mistral")],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_the_self_check_refuses_an_attention_that_ignores(
    switch: Callable[[Patch], None], name: str, saved: Saved, monkeypatch: Patch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # other tests' models passed the check
    switch(monkeypatch)

    with pytest.raises(CheckpointError, match="differs from the plain one"):
        runner.load_engine(name, saved(name))
