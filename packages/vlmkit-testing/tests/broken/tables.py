"""All tables, in the order of the page."""

from broken import (
    api,
    command,
    constraint,
    engine,
    media_encoder,
    media_loader,
    model,
    monitor,
    observer,
    proposer,
    request_field,
    runner,
    sampler,
    scheduler,
    tokenizer,
    tool_source,
)

TABLES = (
    engine.TABLE,
    media_encoder.TABLE,
    proposer.TABLE,
    runner.TABLE,
    sampler.TABLE,
    scheduler.TABLE,
    constraint.TABLE,
    tokenizer.TABLE,
    media_loader.TABLE,
    api.TABLE,
    tool_source.TABLE,
    observer.TABLE,
    monitor.TABLE,
    model.TABLE,
    command.TABLE,
    request_field.TABLE,
)
