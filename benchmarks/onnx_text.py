"""Compares the language model of vlmkit-onnx with peers, on random weights of a real shape.

All contenders have equal threads, lengths and weights, and answer with greedy and with sampled
tokens. Each contender runs once in each round. Contenders of equal bits are adjacent, so that a
minute of slow memory affects them equally. Ratios are computed within a round.
"""

from functools import partial

import answers
import contenders
import kernels
import peers
import quiet
import shapes
import tables
from contenders import Contender

MEMORY = "memory just before, GB/s"
COLUMNS = (*answers.COLUMNS, MEMORY)
TARGETS = (  # ours, theirs, column, minimum
    ("vlmkit w8a8", "llama-server q8_0", answers.clients(1), 1.0),
    ("vlmkit w8a8", "llama-server q8_0", answers.clients(8), 1.5),
    ("vlmkit w8a8", "llama-server q8_0", answers.prompt(512), "2.5 with VNNI, 2.0 without"),
    ("vlmkit w8a8", "OpenVINO GenAI q8_0, in process", answers.prompt(512), 1.1),
    ("vlmkit int4", "llama-server q4_0", answers.clients(1), 1.0),
    ("vlmkit int4", "llama-server q4_0", answers.clients(8), 1.0),
    ("vlmkit int4", "llama-server q4_0", answers.prompt(512), 1.0),
)

Series = dict[str, list[answers.Figures]]
"""The figures of each round, by the name of the contender."""


def bench(options: peers.Options) -> None:
    """Measure each contender in turn and print the tables."""
    checkpoint = shapes.save(options.shape, options.models / f"random-{options.shape}")
    all_contenders = list(contenders.contenders(checkpoint, options))
    greedy: Series = {contender.name: [] for contender in all_contenders}
    sampled: Series = {contender.name: [] for contender in all_contenders}
    for number in range(options.rounds):
        for contender in all_contenders:
            for seen, is_sampled in ((greedy, False), (sampled, True)):
                figures = _measure(contender, options, is_sampled=is_sampled)
                seen[contender.name].append(figures)
                style = "sampled" if is_sampled else "greedy"
                line = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
                print(f"round {number + 1}, {contender.name}, {style}: {line}", flush=True)
    for style, seen in (("greedy", greedy), ("sampled", sampled)):
        title = f"{options.shape}, {options.threads} threads, {options.tokens} new tokens, {style}"
        print(f"\ntokens/s, {title}\n{_table(seen)}")
        print(f"\nratios, {title}\n{_ratios(all_contenders, seen)}")
    print(f"\nsampled over greedy\n{_cost_of_sampling(greedy, sampled)}\n")
    _print_targets(greedy)
    _print_reading(all_contenders, greedy)
    print("\nkernels on this CPU:")
    for precision in options.precisions:
        print(f"  {precision}: {kernels.name(peers.exported(checkpoint, precision))}")


def _measure(contender: Contender, options: peers.Options, *, is_sampled: bool) -> answers.Figures:
    quiet.wait_until(options.idle_but)
    memory = {MEMORY: quiet.memory_gb_per_s(options.threads)}
    measure = partial(contender.figures, options, is_sampled=is_sampled)
    return {**contenders.figures_or_none(contender.name, measure), **memory}


def _table(seen: Series) -> str:
    rows = [
        [name, *(peers.spread([f[key] for f in rounds if key in f]) for key in COLUMNS)]
        for name, rounds in seen.items()
    ]
    return tables.markdown(["engine", *COLUMNS], rows)


def _ratios(all_contenders: list[Contender], seen: Series) -> str:
    """Return ratios of our first contender to all others, and of ours to peers of equal bits."""
    ours = [contender for contender in all_contenders if contender.is_ours]
    rows = []
    for own in ours:
        for other in all_contenders:
            is_peer = not other.is_ours and other.bits == own.bits
            if is_peer or (own is ours[0] and other is not own):
                cells = (_ratio(seen[own.name], seen[other.name], key) for key in answers.COLUMNS)
                rows.append([f"{own.name} / {other.name}", *cells])
    return tables.markdown(["ratio", *answers.COLUMNS], rows)


def _ratio(ours: list[answers.Figures], theirs: list[answers.Figures], column: str) -> str:
    rounds = zip(ours, theirs, strict=True)
    return peers.spread([a[column] / b[column] for a, b in rounds if column in a and column in b])


def _cost_of_sampling(greedy: Series, sampled: Series) -> str:
    columns = [key for key in answers.COLUMNS if key not in map(answers.prompt, answers.PROMPTS)]
    rows = [
        [name, *(_ratio(sampled[name], greedy[name], key) for key in columns)] for name in greedy
    ]
    return tables.markdown(["engine", *columns], rows)


def _print_targets(seen: Series) -> None:
    for ours, theirs, column, least in TARGETS:
        if ours in seen and theirs in seen:
            ratio = _ratio(seen[ours], seen[theirs], column)
            print(f"{column}: {ours} / {theirs} = {ratio} (target {least})")


def _print_reading(all_contenders: list[Contender], seen: Series) -> None:
    """Print how near a single answer is to its limit: every token reads all weights."""
    print("\nmemory read by a single answer, over the memory bandwidth just before:")
    for each in all_contenders:
        if isinstance(each, contenders.Server) and each.weights:
            gb, lone = each.weights.stat().st_size / 1e9, answers.clients(1)
            shares = [gb * f[lone] / f[MEMORY] for f in seen[each.name] if lone in f]
            print(f"  {each.name}: {1000 * gb:.0f} MB a token, {peers.spread(shares)}")
