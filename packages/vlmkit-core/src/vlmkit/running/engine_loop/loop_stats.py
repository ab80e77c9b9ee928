"""Counters of the engine loop."""

from dataclasses import dataclass


@dataclass(slots=True)
class LoopStats:
    """What the loop has done since it started."""

    num_steps: int = 0
    num_overlapped_steps: int = 0
    num_tokens_computed: int = 0
    num_tokens_sampled: int = 0
    num_tokens_drafted: int = 0
    num_drafts_accepted: int = 0
    num_media_encoded: int = 0
    num_preemptions: int = 0
    num_finished: int = 0
    num_aborted: int = 0
    num_failed: int = 0
    num_slow_steps: int = 0
    num_slow_encodings: int = 0
    num_failed_proposers: int = 0
