"""The settings of the publisher of cache events."""

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from vlmkit.settings.bounds import Positive


class ModelEndpoints(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the events of one model of several are published.

    Attributes:
        endpoint: address of its live events.
        replay_endpoint: address that answers requests for past events.
    """

    endpoint: str
    replay_endpoint: str


class KvEventsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where and how cache events are published.

    Events contain the tokens of prompts. An address is ``tcp://`` with a loopback host, or
    ``ipc://`` with a path. Replicas of a model are counted from 0: replica ``n`` has the port plus
    ``n``, or the path with ``-n`` appended from 1 on.

    Attributes:
        endpoint: address of the live events of the only model.
        replay_endpoint: address that answers requests for its past events.
        models: the addresses of each model, by its name, where a server has several.
        topic: the first frame of each message; vllm-router expects it empty, llm-d expects
            ``kv@POD@{model}``. ``{model}`` stands for the model's name, ``{rank}`` for the number
            of its replica.
        encoding: of events: ``map`` as vLLM sends them since 0.24, ``array`` as older versions do.
        block_hashes: ``int`` for hashes of 64 bits, ``bytes`` for the whole keys.
        publishes_scopes: whether the first block of each prefix has the cache scope of its tenant
            and salt among its extra keys. Routers that hash prompts themselves cannot match it.
        max_unsent_batches: batches that wait for a slow subscriber; it loses further ones.
        replay_batches: past batches that can be replayed.
        replay_bytes: their size in bytes.
    """

    endpoint: str = "tcp://127.0.0.1:5557"
    replay_endpoint: str = "tcp://127.0.0.1:6557"
    models: Mapping[str, ModelEndpoints] = {}
    topic: Annotated[str, Meta(max_length=200)] = ""
    encoding: Literal["map", "array"] = "map"
    block_hashes: Literal["int", "bytes"] = "int"
    publishes_scopes: bool = False
    max_unsent_batches: Annotated[int, Meta(ge=1, le=2**24)] = 1000
    replay_batches: Positive = 10_000
    replay_bytes: Positive = 64 * 2**20
