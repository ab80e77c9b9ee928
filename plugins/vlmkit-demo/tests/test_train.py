"""Training is a function of its seed, interrupted or not."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

TINY = {"vision_steps": 1, "vision_images": 2, "rows": 1, "decay": 1, "warmup": 1, "threads": 1}


def weights(run: Path) -> dict[str, object]:
    state = torch.load(run / "state.pt", weights_only=True)
    return dict(state["average"])


def test_an_interrupted_run_ends_where_an_uninterrupted_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import train

    monkeypatch.setattr(train, "batches", lambda s, first: (
        train._make((s.seed, i, s.vision_steps, s.vision_images, s.rows))
        for i in range(first, s.steps)
    ))  # fmt: skip
    train.train(train.Settings(out=tmp_path / "whole", steps=3, **TINY))
    halves = {**TINY, "decay": 1}
    stop = train.Trainer.advance
    calls = []

    def interrupt(self: object, batch: object) -> dict[str, float]:
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(1)
        numbers = stop(self, batch)
        self.save()
        return numbers

    monkeypatch.setattr(train.Trainer, "advance", interrupt)
    with pytest.raises(KeyboardInterrupt):
        train.train(train.Settings(out=tmp_path / "parts", steps=3, **halves))
    monkeypatch.setattr(train.Trainer, "advance", stop)
    train.train(train.Settings(out=tmp_path / "parts", steps=3, **halves))
    whole, parts = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


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
