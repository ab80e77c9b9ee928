"""Measures events per second over HTTP without and with an observer of cache events, in turn.

    python benchmarks/cache_events.py --rounds 7

Two servers of the mock model run at once, and one of them indexes the blocks of its cache. Each is
measured for about a second in turn, in alternating order. The last figures are the median ratio of
rates and of the server's CPU time for each event; over 1 is better with the observer.
"""

import argparse
import asyncio
import multiprocessing
import os
import signal
import socket
import statistics
from pathlib import Path

import mock_streams

STREAMS = {1: 3000, 64: 300, 256: 75}  # tokens of each stream, by the number of streams
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    ports = {listens: _free_port() for listens in (False, True)}
    servers = {
        listens: context.Process(target=mock_streams.serve_mock, args=(port, None, [], listens))
        for listens, port in ports.items()
    }
    for server in servers.values():
        server.start()
    try:
        for port in ports.values():
            asyncio.run(mock_streams.wait(port))
            asyncio.run(mock_streams.round_of(port, 4, 50))
        for num_streams, num_tokens in STREAMS.items():
            rates: dict[bool, list[float]] = {False: [], True: []}
            costs_s: dict[bool, list[float]] = {False: [], True: []}
            for number in range(options.rounds):
                for listens in (False, True) if number % 2 else (True, False):
                    before_s = _cpu_s(servers[listens].pid)
                    num_events, seconds = asyncio.run(
                        mock_streams.round_of(ports[listens], num_streams, num_tokens)
                    )
                    rates[listens].append(num_events / seconds)
                    costs_s[listens].append((_cpu_s(servers[listens].pid) - before_s) / num_events)
            by_rate = [on / off for off, on in zip(rates[False], rates[True], strict=True)]
            by_cost = [off / on for off, on in zip(costs_s[False], costs_s[True], strict=True)]
            without, with_index = (statistics.median(rates[listens]) for listens in (False, True))
            print(
                f"{num_streams:4} streams: {without:7,.0f} events/s without, "
                f"{with_index:7,.0f} with; "
                f"ratio of rates {statistics.median(by_rate):.3f}, "
                f"of CPU time {statistics.median(by_cost):.3f}"
            )
    finally:
        for server in servers.values():
            assert server.pid is not None
            os.kill(server.pid, signal.SIGTERM)
            server.join()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


def _cpu_s(pid: int | None) -> float:
    """Return the CPU time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


if __name__ == "__main__":
    main()
