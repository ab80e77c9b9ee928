"""Fine-tunes a tiny random model until it repeats given answers to given conversations.

``python finetune.py FOLDER EXAMPLES NEW``: EXAMPLES is a JSON list of bodies of chat requests, each
with the ``message`` that answered it. Runs in the environment of the server, which has torch. The
model learns these conversations by heart, and nothing else.
"""

import json
import random
import sys
from pathlib import Path
from typing import Any

import torch
import transformers

MAX_STEPS, LEARNING_RATE, MAX_LOSS = 1500, 3e-3, 0.02
MAX_GRADIENT_NORM = 1.0


def plain(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message as chat templates read it: a text, and arguments that are objects."""
    message = {"content": ""} | {key: said for key, said in message.items() if said is not None}
    calls = [call["function"] for call in message.get("tool_calls", ())]
    read = [call | {"arguments": json.loads(call["arguments"])} for call in calls]
    return message | {"tool_calls": [{"type": "function", "function": call} for call in read]}


def tokens(tokenizer: Any, example: dict[str, Any]) -> tuple[list[int], int]:
    """Return the tokens of a conversation with its answer, and how many are the prompt's."""
    before = [plain(message) for message in example["messages"]]
    options = {"tools": example.get("tools"), "tokenize": False}
    prompt = tokenizer.apply_chat_template(before, add_generation_prompt=True, **options)
    whole = tokenizer.apply_chat_template([*before, plain(example["message"])], **options)
    assert whole.startswith(prompt), (whole, prompt)
    prompt_ids, ids = (tokenizer.encode(t, add_special_tokens=False) for t in (prompt, whole))
    return ids, len(prompt_ids)


def train(model: Any, examples: list[tuple[list[int], int]]) -> float:
    """Train until every answer has a small loss; return the largest one."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0)
    chance, losses = random.Random(0), [10.0] * len(examples)
    for _ in range(MAX_STEPS):
        # What is known worst is shown most often, and what is known is shown at times.
        (number,) = chance.choices(range(len(examples)), [loss + 0.01 for loss in losses])
        ids, num_prompt = examples[number]
        labels = torch.tensor([[-100] * num_prompt + ids[num_prompt:]])
        loss = model(input_ids=torch.tensor([ids]), labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM)
        optimizer.step()
        losses[number] = loss.item()
        if max(losses) < MAX_LOSS:
            break
    return max(losses)


def main(folder: Path, examples: Path, new: Path) -> None:
    """Save a fine-tuned copy of a model."""
    torch.manual_seed(0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    known = [tokens(tokenizer, example) for example in json.loads(examples.read_text())]
    loss = train(model, known)
    assert loss < MAX_LOSS, f"the model did not learn its answers: the largest loss is {loss}"
    model.save_pretrained(new)
    tokenizer.save_pretrained(new)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
