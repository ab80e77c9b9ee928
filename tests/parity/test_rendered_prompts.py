"""A rendered prompt, sent back as tokens and images, gets the answer of its chat.

The families are real, and their engines search the tokens for placeholders. A placeholder without
an image affects no other request.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

import vlmkit
from vlmkit.errors import RequestError
from vlmkit.types.image import Image
from vlmkit.types.message import Message
from vlmkit.types.placed_image import PlacedImage
from vlmkit.types.request import Request
from zoo.picture import picture

pytest.importorskip("vlmkit_hf")
pytestmark = pytest.mark.torch

ENGINE = {"use": "torch", "device": "cpu", "cache_tokens": 16_384}


@pytest.mark.parametrize("name", ["qwen2_vl", "gemma3", "paligemma", "mllama"])
def test_rendered_prompts_are_answered_token_for_token(
    name: str, saved: Callable[[str], Path], one_thread: None
) -> None:
    images = [Image.open(picture(seed, 60 + 30 * seed, 44)) for seed in (1, 2, 1)]
    with vlmkit.load(saved(name), engine=ENGINE) as model:
        params = model.params(max_tokens=8, ignore_eos=True)
        chat = Request(messages=[Message.of("user", "And?", images)], params=params)
        found = asyncio.run(model.runner.atokenize(chat))
        answer = model.submit(chat).result()
        assert found.token_ids == answer.prompt_token_ids
        assert found.image_tokens == answer.usage.image_tokens
        assert [each.size for each in found.images] == [(90, 44), (120, 44), (90, 44)]
        places = [PlacedImage(i, at.start, at.stop, at.digest)
                  for i, at in zip(images, found.images, strict=True)]  # fmt: skip
        given = Request(token_ids=found.token_ids, images=places, params=params)
        assert model.submit(given).result().choices == answer.choices
        assert asyncio.run(model.runner.atokenize(given)) == found

        placeholder = found.token_ids[found.images[0].start :][:1]
        stray = Request(token_ids=found.token_ids + placeholder, images=places, params=params)
        first_only = Request(token_ids=found.token_ids, images=places[:1], params=params)
        for wrong in (stray, first_only):
            with pytest.raises(RequestError):
                model.submit(wrong)
        alone = Request(token_ids=placeholder * 3, params=params)
        if placeholder[0] < model.facts.limits.vocab_size:
            assert len(model.submit(alone).result().choices[0].token_ids) == 8
        else:
            with pytest.raises(RequestError, match="is not in the vocabulary"):
                model.submit(alone)
        assert model.submit(chat).result().choices == answer.choices
