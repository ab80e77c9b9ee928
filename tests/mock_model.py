"""Helpers for tests of a pipeline with the mock: prompts, images and waiting."""

import json
import time

import PIL.Image

from vlmkit.model import Model
from vlmkit.running.pipeline.pipeline import Pipeline
from vlmkit.running.scheduling.scheduler import ContinuousScheduler
from vlmkit.settings.scheduler import SchedulerSettings
from vlmkit_mock.engine import MockEngine
from vlmkit_mock.settings import MockEngineSettings
from vlmkit_mock.tokenizer import MockTokenizer
from vlmkit_mock.vision_encoder import MockVisionEncoder


class Hesitant(MockEngine):
    """Has several likely tokens at each place, so that seeds, filters and penalties decide."""

    def _logits(self, wanted):
        return super()._logits(wanted) * 0.12


def hesitant(proposer=None, engine=Hesitant, *, sampler=None, constraint=None, **options):
    """Return a model whose steps are small; options are the engine's."""
    return Model(
        Pipeline(
            tokenizer=MockTokenizer(),
            engine=engine(MockEngineSettings(**({"capacity_tokens": 2**14} | options))),
            media_encoder=MockVisionEncoder(),
            scheduler=ContinuousScheduler(SchedulerSettings(max_step_tokens=64)),
            sampler=sampler,
            proposer=proposer,
            constraint=constraint,
        )
    )


def answers(model, requests):
    """Return all that clients see of some requests that run together."""
    streams = [model.submit(request) for request in requests]
    return [
        [(c.text, c.finish_reason, tuple(c.samples)) for c in stream.result().choices]
        for stream in streams
    ]


def script(**fields):
    """Return a prompt that states the answer of the mock."""
    return json.dumps({"mock": fields})


def picture(width=8, height=6, color="red"):
    return PIL.Image.new("RGB", (width, height), color)


def wait_until(condition, timeout_s=300.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.002)
