"""Scores over HTTP equal those computed from transformers' hidden states and logits."""

import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from parity import runner
from vlmkit.types.message import TextPart
from vlmkit_server.apis.scores.items import Item
from vlmkit_server.apis.scores.scoring import pair_conversation
from vlmkit_server.apis.scores.settings import ScoresSettings

pytest.importorskip("vlmkit_hf")
pytestmark = pytest.mark.torch

NAME = "qwen3_vl"
QUERY = "Which sea is the largest?"
DOCUMENTS = ["The Pacific.", "Trains run late, and seldom on time.", "Hi"]
ATOL = 1e-4

Post = Callable[..., Any]


@pytest.fixture(scope="module")
def post(saved: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Post]:
    """Return a function that sends a body to a server process with a tiny random model."""
    log = tmp_path_factory.mktemp("scores") / "log"
    command = [sys.executable, "-m", "vlmkit", "serve", str(saved(NAME)), "--port", "0"]
    command += ["--set", "engine.use=torch"]
    with log.open("wb") as file, subprocess.Popen(command, stderr=file) as process:
        try:
            while "is ready\n" not in (text := log.read_text()):
                assert process.poll() is None, text
                time.sleep(0.1)
            found = re.search(r"listening on (\S+)", text)
            assert found

            def post(path: str, **body: Any) -> Any:
                headers = {"content-type": "application/json"}
                content = json.dumps(body).encode()
                asked = urllib.request.Request(f"{found[1]}{path}", content, headers)
                with urllib.request.urlopen(asked) as answer:
                    return json.load(answer)

            yield post
        finally:
            process.kill()


def inputs_of(token_ids: list[int]) -> dict[str, torch.Tensor]:
    ids = torch.tensor([token_ids])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def test_a_ranking_has_the_cosines_of_transformers_hidden_states(
    post: Post, saved: Callable[[str], Path]
) -> None:
    folder = saved(NAME)
    model = runner.load_reference(NAME, folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        query, *documents = (
            model.model(**inputs_of(tokenizer(text)["input_ids"])).last_hidden_state[0, -1].double()
            for text in [QUERY, *DOCUMENTS]
        )
    expected = [torch.cosine_similarity(query, each, dim=0).item() for each in documents]
    answer = post("/v1/rerank", query=QUERY, documents=DOCUMENTS)
    found = {each["index"]: each["relevance_score"] for each in answer["results"]}
    assert [found[index] for index in range(len(DOCUMENTS))] == pytest.approx(expected, abs=ATOL)


def test_a_score_by_yes_and_no_is_the_softmax_of_transformers_log_probabilities(
    post: Post, saved: Callable[[str], Path]
) -> None:
    folder = saved(NAME)
    model = runner.load_reference(NAME, folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    expected = [probability(model, tokenizer, document) for document in DOCUMENTS]
    answer = post("/v1/score", text_1=QUERY, text_2=DOCUMENTS, score_method="yes_no")
    assert [each["score"] for each in answer["data"]] == pytest.approx(expected, abs=ATOL)
    assert len(set(expected)) == len(DOCUMENTS)


def probability(model: Any, tokenizer: Any, document: str) -> float:
    """Return the probability of ``yes`` among ``yes`` and ``no``, in a pass for each."""
    asked = pair_conversation(
        Item("q", [TextPart(QUERY)]),
        Item("d", [TextPart(document)]),
        ScoresSettings().system_prompt,
        "",
    )
    messages = [
        {"role": each.role, "content": "".join(p.text for p in each.parts)}  # type: ignore[union-attr]
        for each in asked.messages
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    prompt = tokenizer(text, add_special_tokens=False)["input_ids"]
    sums = []
    for answer in ("yes", "no"):
        given = tokenizer(answer, add_special_tokens=False)["input_ids"]
        with torch.no_grad():
            logits = model(**inputs_of(prompt + given)).logits[0].double()
        rows = logits.log_softmax(-1)[len(prompt) - 1 : -1]
        sums.append(rows.gather(1, torch.tensor(given)[:, None]).sum())
    return torch.stack(sums).softmax(0)[0].item()
