"""The prompt tokens and image features that ways of routing save, in simulated time.

    PYTHONPATH=plugins/vlmkit-grpc/tests python benchmarks/routing_policies.py --workers 4

The rows are compared with one worker that has the memory of all. Seeds make each run the same.
"""

import argparse
import statistics
from functools import partial

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
    args = parser.parse_args()
    by_content = partial(simulation.by_content, args.cache_tokens)
    policies = {
        "round robin": simulation.round_robin,
        "fewest open requests": simulation.fewest_open,
        "consistent hashing": simulation.consistent_hash,
        "cache_aware": simulation.cache_aware,
        "vlmkit": by_content,
        "vlmkit, three gateways": partial(by_content, num_gateways=3),
    }
    rows = []
    traces = [
        simulation.conversations(args.conversations, seed, args.rate) for seed in range(args.seeds)
    ]
    for name, make in policies.items():
        found = [
            simulation.outcome(turns, make, args.workers, args.cache_tokens, args.cache_tokens)
            for turns in traces
        ]
        saved, load, wait = (
            statistics.mean(getattr(each, field) for each in found)
            for field in ("saved", "highest_load", "mean_wait_s")
        )
        rows.append([name, f"{saved:.3f}", f"{load:.2f}", f"{wait:.2f}"])
    print(tables.markdown(["routing", "saved", "highest load", "wait (s)"], rows))


if __name__ == "__main__":
    main()
