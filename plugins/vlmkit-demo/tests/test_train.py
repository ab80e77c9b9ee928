"""Training is a function of its seed, also after an interruption."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")


class Interrupted(Exception):  # noqa: N818 - nothing has gone wrong
    pass


def weights(run: Path) -> dict[str, object]:
    return dict(torch.load(run / "state.pt", weights_only=True)["average"])


def test_an_interrupted_run_ends_where_an_uninterrupted_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import train

    def at_once(settings: "train.Settings", first: int) -> Iterator[object]:
        return (train.make_batch(settings, step) for step in range(first, settings.steps))

    monkeypatch.setattr(train, "batches", at_once)
    tiny = {"vision_steps": 1, "page_steps": 1, "vision_images": 2, "rows": 1, "warmup": 1}
    whole = train.Settings(out=tmp_path / "whole", steps=4, decay=2, threads=1, **tiny)
    train.train(whole)

    parts = replace(whole, out=tmp_path / "parts", save_seconds=0.0)
    advance = train.Trainer.advance

    def interrupt(self: "train.Trainer", batch: object) -> dict[str, float]:
        if self.step == 2:
            raise Interrupted
        return advance(self, batch)

    monkeypatch.setattr(train.Trainer, "advance", interrupt)
    with pytest.raises(Interrupted):
        train.train(parts)
    monkeypatch.setattr(train.Trainer, "advance", advance)
    train.train(parts)

    one, other = weights(whole.out), weights(parts.out)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_conversation_packed_with_others_is_scored_as_if_alone() -> None:
    import numpy as np
    from dataset import Batch, Text, joint_batch
    from train import MEAN, SPREAD, Settings, Trainer

    trainer = Trainer(Settings(out=Path("unused")))
    batch = joint_batch(7, 6, 1)
    text = batch.text
    assert text is not None
    pixels = (torch.from_numpy(batch.pixels).permute(0, 3, 1, 2).float() - MEAN) / SPREAD
    shown = (text.spans[0] == 0) | (text.spans[0] == 2)
    targets = torch.from_numpy(text.targets[0][shown])
    with torch.no_grad():
        ids = torch.from_numpy(text.ids[0][shown])[None]
        logits = trainer.model(input_ids=ids, pixel_values=pixels).logits[0]
        alone = torch.nn.functional.cross_entropy(logits[targets >= 0], targets[targets >= 0])
        features = trainer.model.model.vision_tower(pixels).last_hidden_state[:, 1:]
        one = Text(text.ids, np.where(text.spans == 2, text.targets, -100), text.positions,
                   text.spans, text.slots)  # fmt: skip
        packed, _ = trainer.answer_loss(features, Batch(batch.pixels, batch.labels, batch.ink, one))
    assert abs(float(packed) - float(alone)) < 0.02
