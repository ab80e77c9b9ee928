"""Engines that break one promise each."""

from honest.engine import AttentionEngine

from broken.broken import Table
from broken.engine_events import EVENTS
from broken.engine_life import LIFE
from broken.engine_mock import MOCKS
from broken.engine_numbers import NUMBERS
from broken.engine_overlap import OVERLAP
from broken.engine_prefixes import PREFIXES
from broken.engine_repeats import REPEATS
from broken.engine_room import ROOM
from broken.engine_rows import ROWS
from broken.engine_subjects import OnAttention
from broken.engine_walk import WALK
from vlmkit_testing import EngineContract

TABLE = Table(
    EngineContract,
    OnAttention,
    AttentionEngine,
    (*NUMBERS, *ROWS, *PREFIXES, *EVENTS, *ROOM, *LIFE, *WALK, *OVERLAP, *REPEATS, *MOCKS),
)
