"""The prompt tokens and image features that ways of routing save, in simulated time.

    PYTHONPATH=plugins/vlmkit-grpc/tests python benchmarks/routing_policies.py --workers 4
    ... --trace conversation_trace.jsonl --cache-tokens 2000000 --tokens-per-s 12000

The rows are compared with one worker that has the memory of all. Seeds make each run the same. A
trace of Mooncake's form (FAST '25) replaces the generated conversations. It has no images;
`--image-share` adds them to conversations by chance.
"""

import argparse
import statistics
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import recorded_conversations
import routing_simulation as simulation
import tables


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--conversations", type=int, default=600)
    parser.add_argument(
        "--rate", type=float, default=2.0, help="conversations that begin per second"
    )
    parser.add_argument("--cache-tokens", type=int, default=200_000, help="of each worker")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trace", type=Path, help="replays recorded requests instead")
    parser.add_argument("--image-share", type=float, default=0.0, help="of a trace's conversations")
    parser.add_argument(
        "--tokens-per-s",
        type=float,
        default=simulation.PREFILL_TOKENS_PER_S,
        help="tokens of prompts that a worker computes per second",
    )
    args = parser.parse_args()
    by_content = partial(simulation.by_content, args.cache_tokens)
    policies = {
        "round robin": simulation.round_robin,
        "fewest open requests": simulation.fewest_open,
        "consistent hashing": simulation.consistent_hash,
        "cache_aware": simulation.cache_aware,
        "vlmkit": by_content,
        "vlmkit, three gateways": partial(by_content, num_gateways=3),
        "vlmkit, three that share nothing": partial(
            by_content, num_gateways=3, are_estimates_shared=False
        ),
    }
    rows = []
    traces = list(_traces(args))
    for name, make in policies.items():
        found = [
            simulation.outcome(
                turns, make, args.workers, args.cache_tokens, args.cache_tokens, args.tokens_per_s
            )
            for turns in traces
        ]
        saved, load, wait = (
            statistics.mean(getattr(each, field) for each in found)
            for field in ("saved", "highest_load", "mean_wait_s")
        )
        rows.append([name, f"{saved:.3f}", f"{load:.2f}", f"{wait:.2f}"])
    print(tables.markdown(["routing", "saved", "highest load", "wait (s)"], rows))


def _traces(args: argparse.Namespace) -> Iterator[list[simulation.Turn]]:
    """Yield the conversations of each seed; a trace without images is the same for all."""
    if args.trace is None:
        for seed in range(args.seeds):
            yield simulation.conversations(args.conversations, seed, args.rate)
        return
    for seed in range(args.seeds if args.image_share else 1):
        with args.trace.open() as lines:
            yield recorded_conversations.recorded(lines, args.image_share, seed)


if __name__ == "__main__":
    main()
