"""Greedy tokens equal those of the library's own server, with and without images."""

import base64
import io
import json
import random
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zoo
from parity import runner
from vlmkit.interfaces.prompt import MediaSlot, Prompt
from vlmkit_llama.layout import ROW

pytestmark = pytest.mark.torch

PartsOf = Callable[[str], Any]
MARGIN = 1e-3
"""The largest difference of two logits whose order may change: sums have another order."""

FAMILIES = ("gemma3", "smolvlm", "mistral3", "qwen2_5_vl", "qwen3_vl")
MORE = (*FAMILIES, "qwen2_vl")
WORDS = ("the", "sea", "sky", "river", "hill", "town", "animal", "count", "ten", "why", "of", "in")

SERVER = """
import sys, time
import xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.mmproj.path = sys.argv[1:3]
params.hostnames, params.port = ["127.0.0.1"], 0
params.n_ctx, params.n_parallel, params.kv_unified = 2048, 8, True
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
params.warmup, params.fit_params = False, False
params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
server = xllamacpp.Server(params)
print("address", server.listening_address, flush=True)
sys.stdin.read()
"""


class LibraryServer:
    """The server of the package xllamacpp, in a process of its own."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.marker = self._answer("/props")["media_marker"]

    def token_ids(self, text: str, *, is_first: bool) -> list[int]:
        body = {"content": text, "add_special": is_first, "parse_special": False}
        found: list[int] = self._answer("/tokenize", body)["tokens"]
        return found

    def greedy(self, text: str, images: list[Any]) -> list[int]:
        prompt = {"prompt_string": text, "multimodal_data": [_base64(image) for image in images]}
        settings = {"n_predict": runner.NUM_NEW, "temperature": 0, "ignore_eos": True}
        body = {"prompt": prompt, "return_tokens": True, "cache_prompt": False, **settings}
        found: list[int] = self._answer("/completion", body)["tokens"]
        return found

    def _answer(self, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(
            self._address + path, data, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(asked, timeout=300) as response:
            return json.load(response)


def _base64(image: Any) -> str:
    written = io.BytesIO()
    image.save(written, "PNG")
    return base64.b64encode(written.getvalue()).decode()


@contextmanager
def library_server(folder: Path) -> Iterator[LibraryServer]:
    files = [str(folder / name) for name in ("model.gguf", "mmproj.gguf")]
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, *files],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as child:
        assert child.stdout is not None
        line = next(line for line in child.stdout if line.startswith("address "))
        try:
            yield LibraryServer(line.split()[1])
        finally:
            child.kill()


def some_text(dice: random.Random) -> str:
    return " ".join(dice.choices(WORDS, k=dice.randrange(2, 20)))


def asked(
    server: LibraryServer, made: Any, num: int, seed: int
) -> Iterator[tuple[Prompt, str, list[Any]]]:
    """Yield prompts with up to two images, and the same for the server."""
    dice = random.Random(seed)
    projector = made.tokenizer._projector
    for number in range(num):
        texts = [some_text(dice) for _ in range(1 + number % 3)]
        images = [
            zoo.picture(dice.randrange(9), dice.randrange(16, 90), dice.randrange(16, 90))
            for _ in texts[1:]
        ]
        token_ids = server.token_ids(texts[0], is_first=True)
        slots = []
        for text, image in zip(texts[1:], images, strict=True):
            layout, start = projector.layout(*image.size), len(token_ids)
            token_ids += [0 if i == ROW else i for i in layout.token_ids.tolist()]
            inputs = layout.inputs(np.array(image))
            digest = f"{number}-{start}".encode().ljust(32)
            stop = len(token_ids)
            slots.append(MediaSlot(start, stop, digest, inputs, layout.num_features))
            token_ids += server.token_ids(text, is_first=False)
        yield Prompt(tuple(token_ids), tuple(slots)), server.marker.join(texts), images


def _compare(made: Any, num: int, *, together: int) -> None:
    """Compare tokens; the first difference of an answer must be a tie."""
    engine, encoder = made.engine(cache_tokens=2048, max_sequence_tokens=400), made.encoder()
    ends = sorted(made.tokenizer.eos_ids)  # which neither side chooses
    margins = []
    with library_server(made.folder) as server:
        everything = list(asked(server, made, num, seed=num))
        for first in range(0, num, together):
            some = everything[first : first + together]
            prompts = [prompt for prompt, _, _ in some]
            answers = runner.run(*(engine, encoder, prompts, ends), arrival_steps=0, step_tokens=96)
            for answer, (_, text, images) in zip(answers, some, strict=True):
                wanted = server.greedy(text, images)
                pairs = enumerate(zip(answer.token_ids, wanted, strict=True))
                rows = [(row, one, other) for row, (one, other) in pairs if one != other]
                for row, one, other in rows[:1]:
                    margins.append(float(answer.logits[row, one] - answer.logits[row, other]))
    engine.close()
    encoder.close()
    print(f"{len(margins)} of {num} answers differ, with margins {margins}")
    assert all(margin < MARGIN for margin in margins), margins
    assert len(margins) <= num // 20


@pytest.mark.posix
@pytest.mark.parametrize("family", FAMILIES)
def test_answers_equal_those_of_the_librarys_server(family: str, parts: PartsOf) -> None:
    _compare(parts(family), 24, together=8)


@pytest.mark.slow
@pytest.mark.posix
@pytest.mark.parametrize("together", [1, 8])
@pytest.mark.parametrize("family", MORE)
def test_two_hundred_answers_equal_those_of_the_librarys_server(
    family: str, together: int, parts: PartsOf
) -> None:
    _compare(parts(family), 200, together=together)
