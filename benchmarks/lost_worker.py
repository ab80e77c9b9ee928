"""How long a reader waits when the worker of its answer is killed: until the next token.

    PYTHONPATH=tests python benchmarks/lost_worker.py --model demo

Two workers on this machine answer in turn. The other worker computes the answer again up to the
part that the reader has.
"""

import argparse
import statistics
import time

import tables

import vlmkit
from vlmkit.types.request import Request
from workers import WorkerProcess

QUESTION = "Describe the picture in detail. " * 8


def wait_s(model: vlmkit.Model, request: Request, num_read: int, kill) -> tuple[float, float]:
    """Return the longest wait for a chunk after the kill, and the mean of those before."""
    stream = iter(model.submit(request))
    if not num_read:
        kill()
    last, gaps, after = time.perf_counter(), [], []
    for number, _ in enumerate(stream, 1):
        now = time.perf_counter()
        (after if number > num_read else gaps).append(now - last)
        last = now
        if number == num_read:
            kill()
            last = time.perf_counter()
    return max(after), statistics.mean(gaps or [0.0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=300)
    args = parser.parse_args()
    rows = []
    for num_read in (0, 10, 100, args.tokens - 20):
        waits = []
        for _ in range(args.rounds):
            processes = [WorkerProcess(model=args.model) for _ in range(2)]
            hosts = ",".join(process.address for process in processes)
            with vlmkit.load(f"grpc://{hosts}", runner={"use": "grpc"}) as model:
                options = {"max_tokens": args.tokens, "ignore_eos": True, "seed": 1}
                model.generate(QUESTION, **options)

                def kill(model=model, processes=processes):
                    pairs = zip(processes, model.runner.runners, strict=True)
                    next(process for process, runner in pairs if runner._requests).kill()

                waits.append(wait_s(model, model.request(QUESTION, **options), num_read, kill))
            for process in processes:
                process.close()
        lost, token = (statistics.median(each) for each in zip(*waits, strict=True))
        rows.append([str(num_read), f"{1000 * lost:.0f}", f"{1000 * token:.1f}"])
    print(tables.markdown(["tokens read", "wait (ms)", "a token (ms)"], rows))


if __name__ == "__main__":
    main()
