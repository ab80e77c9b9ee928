"""All tables, in the order of the page."""

from broken import (
    engine,
    media_encoder,
    observer,
    proposer,
    runner,
    sampler,
    scheduler,
    tokenizer,
)

TABLES = (
    engine.TABLE,
    media_encoder.TABLE,
    proposer.TABLE,
    runner.TABLE,
    sampler.TABLE,
    scheduler.TABLE,
    tokenizer.TABLE,
    observer.TABLE,
)
