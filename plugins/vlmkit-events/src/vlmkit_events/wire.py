"""The messages that vLLM publishes: batches of events in msgpack.

A batch is an array. Its events are maps with a type since vLLM 0.24, and were tagged arrays before;
in arrays, defaults at the end are left out.
"""

import hashlib
from typing import Any

import msgspec

Hash = int | bytes
MEDIUM = "GPU"  # how routers name the engine's own memory, on any device
INT_BITS = 64


class Batch(msgspec.Struct, array_like=True, gc=False):
    """Events of one moment.

    Attributes:
        ts: seconds since the epoch.
        events: in the order in which they apply.
        data_parallel_rank: the number of the replica whose cache it is.
    """

    ts: float
    events: list[Any]
    data_parallel_rank: int


class BlockStored(msgspec.Struct, tag=True, gc=False, kw_only=True):
    """A chain of blocks that can be reused from now on; each is the parent of the next.

    Attributes:
        block_hashes: their hashes.
        parent_block_hash: the hash of the block before the first; None at the start of a prompt.
        token_ids: the tokens of all, in order.
        block_size: tokens of each.
        lora_id: None here.
        medium: where they are.
        lora_name: None here.
        extra_keys: for each block what its hash covers besides tokens; None for nothing.
    """

    block_hashes: list[Hash]
    parent_block_hash: Hash | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str = MEDIUM
    lora_name: str | None = None
    extra_keys: list[tuple[str, ...] | None]


class BlockRemoved(msgspec.Struct, tag=True, gc=False, kw_only=True):
    """Blocks that cannot be reused any more."""

    block_hashes: list[Hash]
    medium: str = MEDIUM


class AllBlocksCleared(msgspec.Struct, tag=True, gc=False):
    """Nothing stored before can be reused."""


class BlockStoredArray(BlockStored, tag="BlockStored", array_like=True, gc=False, kw_only=True):
    """As an array."""


class BlockRemovedArray(BlockRemoved, tag="BlockRemoved", array_like=True, gc=False, kw_only=True):
    """As an array."""


class AllBlocksClearedArray(AllBlocksCleared, tag="AllBlocksCleared", array_like=True, gc=False):
    """As an array."""


def int_hash(key: bytes) -> int:
    """Return the last 64 bits of a block's key, as vLLM shortens its hashes."""
    if len(key) * 8 < INT_BITS * 2:  # too short to be a digest
        key = hashlib.sha256(key).digest()
    return int.from_bytes(key[-INT_BITS // 8 :], "big")
