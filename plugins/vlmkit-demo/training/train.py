"""Train the demo model: first the vision tower alone, then everything together.

    python training/train.py --out RUN

The same command continues an interrupted run from its newest checkpoint, with the result of an
uninterrupted run, because a batch is a function of the seed and the step. The learning rate warms
up, stays, and falls to zero over the last ``--decay`` steps. Before the fall, ``--steps`` may be
changed to shorten or extend the run. It writes ``RUN/state.pt`` and ``RUN/log.jsonl``;
``export.py`` turns a run into a checkpoint folder.
"""

import argparse
import json
import math
import multiprocessing
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from dataset import Batch, joint_batch, vision_batch
from model import PatchHeads, build_model
from tokenizer import END, IMAGE, PAD, load_tokenizer, special_ids
from torch import Tensor, nn

MEAN, SPREAD = 127.5, 127.5  # pixels become [-1, 1], as in the image processor's config


@dataclass(frozen=True)
class Settings:
    """All settings that determine the result of a run."""

    out: Path
    seed: int = 7
    vision_steps: int = 2600
    page_steps: int = 711  # the last vision steps, in which most images are pages of text
    vision_images: int = 64
    steps: int = 8000  # all steps, vision steps included
    decay: int = 3800  # the last steps, in which the learning rate falls to zero
    rows: int = 24
    rate: float = 1e-3
    warmup: int = 300
    patch_weight: float = 0.25
    average: float = 0.996
    save_seconds: float = 180.0
    threads: int = 2


class Trainer:
    """Owns the model, its optimizer and the moving average of its weights."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        torch.manual_seed(settings.seed)
        tokenizer = load_tokenizer()
        ids = special_ids(tokenizer)
        self.model = build_model(tokenizer.get_vocab_size(), ids[IMAGE], ids[END], ids[PAD])
        torch.manual_seed(settings.seed + 1)  # equal heads for any vocabulary
        self.heads = PatchHeads()
        named = [*self.model.named_parameters(), *self.heads.named_parameters()]
        self.average = {n: p.detach().clone() for n, p in self.model.named_parameters()}
        self.optimizer = torch.optim.AdamW(
            [
                {"params": [p for _, p in named if (p.ndim > 1) is matrix],
                 "weight_decay": 0.05 if matrix else 0.0}
                for matrix in (True, False)
            ],
            lr=settings.rate, betas=(0.9, 0.98), fused=True,
        )  # fmt: skip
        self.step = 0

    def save(self) -> None:
        """Write the state atomically, so that a crash leaves the previous one."""
        path = self.settings.out / "state.pt"
        state = {
            "step": self.step, "model": self.model.state_dict(), "heads": self.heads.state_dict(),
            "average": self.average, "optimizer": self.optimizer.state_dict(),
            "rng": torch.get_rng_state(),
        }  # fmt: skip
        torch.save(state, path.with_suffix(".tmp"))
        path.with_suffix(".tmp").replace(path)

    def resume(self) -> None:
        """Continue from the newest state, if there is one."""
        path = self.settings.out / "state.pt"
        if not path.exists():
            return
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.heads.load_state_dict(state["heads"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.average, self.step = state["average"], state["step"]
        torch.set_rng_state(state["rng"])

    def rate(self) -> float:
        """The learning rate of this step; both stages warm up, and the end falls to zero."""
        s = self.settings
        begun = self.step if self.step < s.vision_steps else self.step - s.vision_steps
        fallen = max(0.0, 1 - (s.steps - self.step) / s.decay)
        return s.rate * min(1.0, (begun + 1) / s.warmup, 1 - math.sqrt(fallen))

    def settle(self) -> None:
        """Replace the weights by their average before the learning rate falls."""
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(self.average[name])

    def advance(self, batch: Batch) -> dict[str, float]:
        """Take one step and return its measurements."""
        if self.settings.steps - self.step == self.settings.decay:
            self.settle()
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate()
        self.optimizer.zero_grad(set_to_none=True)
        loss, numbers = self.losses(batch)
        torch.autograd.backward(loss)
        parameters = [*self.model.parameters(), *self.heads.parameters()]
        norm = nn.utils.clip_grad_norm_(parameters, 1.0)
        self.optimizer.step()
        keep = min(self.settings.average, (self.step + 1) / (self.step + 10))
        with torch.no_grad():
            torch._foreach_lerp_(
                list(self.average.values()), [p for _, p in self.model.named_parameters()], 1 - keep
            )
        self.step += 1
        return {"loss": loss.item(), "norm": norm.item(), **numbers}

    def losses(self, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        """Compute the loss of a vision or a joint batch."""
        pixels = (torch.from_numpy(batch.pixels).permute(0, 3, 1, 2).float() - MEAN) / SPREAD
        with torch.autocast("cpu", dtype=torch.bfloat16):
            layers = self.model.model.vision_tower(pixels, output_hidden_states=True).hidden_states
        features = layers[-1][:, 1:]
        patch, numbers = self.heads(
            layers[len(layers) // 2][:, 1:], features, torch.from_numpy(batch.labels),
            torch.from_numpy(batch.ink).float() / 255,
        )  # fmt: skip
        if batch.text is None:
            return patch, numbers
        answer, exact = self.answer_loss(features, batch)
        numbers |= {"answer": answer.item(), "exact": exact, "patch": patch.item()}
        return answer + self.settings.patch_weight * patch, numbers

    def answer_loss(self, features: Tensor, batch: Batch) -> tuple[Tensor, float]:
        """Cross entropy of the answer tokens, and the share of correct tokens."""
        text = batch.text
        assert text is not None, "a vision batch has no answers"
        ids, targets = torch.from_numpy(text.ids), torch.from_numpy(text.targets)
        inner = self.model.model
        with torch.autocast("cpu", dtype=torch.bfloat16):
            talked_of = len(text.slots) // features.shape[1]
            seen = inner.multi_modal_projector(features[:talked_of])
            embedded = inner.get_input_embeddings()(ids)
            slots = torch.from_numpy(text.slots)
            embedded = embedded.index_put(
                (slots[:, 0], slots[:, 1]), seen.reshape(-1, seen.shape[-1]).to(embedded.dtype)
            )
            hidden = inner.language_model(
                inputs_embeds=embedded, position_ids=torch.from_numpy(text.positions),
                attention_mask=_mask(text.spans), use_cache=False,
            ).last_hidden_state  # fmt: skip
            logits = self.model.lm_head(hidden[targets >= 0])
        wanted = targets[targets >= 0]
        loss = nn.functional.cross_entropy(logits.float(), wanted)
        return loss, float((logits.argmax(-1) == wanted).float().mean())


def _mask(spans: np.ndarray) -> Tensor:
    """Additive attention mask ``[rows, 1, seq, seq]`` from span numbers ``[rows, seq]``.

    Span 0 is the shared prefix. A positive span attends to the prefix and itself, a negative one (a
    conversation without images) only to itself. The mask is causal.
    """
    span = torch.from_numpy(spans)
    query, key = span[:, :, None], span[:, None, :]
    size = span.shape[1]
    allowed = (query == key) | ((key == 0) & (query > 0))
    allowed &= torch.ones(size, size, dtype=torch.bool).tril()
    mask = torch.zeros(allowed.shape, dtype=torch.bfloat16).masked_fill(~allowed, -1e9)
    return mask[:, None]


PAGES = 0.6  # share of pages in the page steps
AHEAD = 8  # batches drawn ahead


def make_batch(settings: Settings, step: int) -> Batch:
    """Draw the batch of one step."""
    s = settings
    if step >= s.vision_steps:
        return joint_batch(s.seed, step, s.rows)
    pages = PAGES if step >= s.vision_steps - s.page_steps else 0.0
    return vision_batch(s.seed, step, s.vision_images, pages)


def batches(settings: Settings, first: int) -> Iterator[Batch]:
    """Yield the batches from step ``first`` on, drawn ahead in another process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        steps = range(first, settings.steps)
        ahead = deque(pool.apply_async(make_batch, (settings, i)) for i in steps[:AHEAD])
        for step in steps:
            batch = ahead.popleft().get()
            if step + AHEAD < settings.steps:
                ahead.append(pool.apply_async(make_batch, (settings, step + AHEAD)))
            yield batch


def train(settings: Settings) -> Trainer:
    """Train until ``settings.steps`` and return the trainer."""
    settings.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(settings.threads)
    trainer = Trainer(settings)
    trainer.resume()
    saved = begun = time.monotonic()
    done = 0
    with (settings.out / "log.jsonl").open("a", encoding="utf-8") as log:
        for batch in batches(settings, trainer.step):
            numbers = trainer.advance(batch)
            done += 1
            if trainer.step % 25 == 0:
                pace = done / (time.monotonic() - begun)
                row = {"step": trainer.step, "rate": trainer.rate(), "pace": pace, **numbers}
                short = {k: float(f"{v:.4g}") for k, v in row.items()}
                log.write(json.dumps(short) + "\n")
                log.flush()
            if time.monotonic() - saved > settings.save_seconds:
                trainer.save()
                saved = time.monotonic()
    trainer.save()
    return trainer


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    for name, kind in Settings.__annotations__.items():
        if name != "out":
            flag = "--" + name.replace("_", "-")
            parser.add_argument(flag, type=kind, default=getattr(Settings, name))
    train(Settings(**vars(parser.parse_args())))


if __name__ == "__main__":
    main()
