"""Conversations about images in front of simulated workers, to compare ways of routing.

Time is simulated, so a run is exact and repeatable. A worker computes prompts one after another and
generates for all its sequences at once; its prefix cache and its feature cache drop what was used
least recently. What a prompt costs is known to the worker only, as in a real fleet.
"""

import bisect
import hashlib
import heapq
import itertools
import random
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Protocol

from vlmkit.running.fleet.cache_estimate import CacheEstimate, TokenSizes
from vlmkit.running.fleet.prompt_keys import Segment, affinity_of, segments
from vlmkit.running.fleet.routing import SEQUENCE_TOKENS, Candidate, choose
from vlmkit.types.image import Image
from vlmkit.types.message import ImagePart, Message, TextPart
from vlmkit.types.request import Request

PREFILL_TOKENS_PER_S = 4000.0
TOKEN_S = 0.02  # of each sequence that generates
SHOWN_S = 0.05  # until other gateways learn of a prompt
BLOCK_TOKENS = 16
APPLICATIONS = 6  # each has a system prompt of its own


@dataclass(frozen=True)
class Turn:
    """One request of a conversation.

    Attributes:
        arrives_s: when it arrives.
        conversation: the number of its conversation.
        request: what a gateway sees.
        blocks: keys of its blocks of tokens, in order, as the worker's prefix cache has them.
        images: the tokens of each image, by its digest.
        num_tokens: tokens of the prompt.
        completion_tokens: tokens of the answer.
        block_tokens: tokens of a block.
    """

    arrives_s: float
    conversation: int
    request: Request
    blocks: tuple[int, ...]
    images: dict[bytes, int]
    num_tokens: int
    completion_tokens: int
    block_tokens: int = BLOCK_TOKENS


@dataclass
class _Prompt:
    """A conversation so far, and the tokens that it has in a worker."""

    messages: list[Message] = field(default_factory=list)
    tokens: list[tuple[object, int]] = field(default_factory=list)  # content and its tokens
    images: dict[bytes, int] = field(default_factory=dict)

    def add(self, role: str, text: str, images: Sequence[tuple[bytes, int]] = ()) -> None:
        parts = [ImagePart(Image((8, 8), content)) for content, _ in images]
        self.messages.append(Message(role, (*parts, TextPart(text))))
        for content, num_tokens in images:
            self.tokens.append((content, num_tokens))
            self.images[content] = num_tokens
        self.tokens.append((text, max(1, len(text) * 2 // 9)))

    def blocks(self) -> Iterator[int]:
        """Yield the keys of all full blocks."""
        key, filled = hashlib.blake2b(digest_size=8), 0
        for content, num_tokens in self.tokens:
            key.update(repr(content).encode())
            for number in range(num_tokens):
                filled += 1
                if filled % BLOCK_TOKENS == 0:
                    here = hashlib.blake2b(key.digest() + number.to_bytes(8), digest_size=8)
                    yield int.from_bytes(here.digest())


def words(chance: random.Random, num: int) -> str:
    return " ".join("".join(chance.choices("etaoinshrdlu", k=6)) for _ in range(num))


def conversations(
    num: int, seed: int, rate: float, system_words: Sequence[int] = (20, 60, 150)
) -> list[Turn]:
    """Return the turns of conversations that begin at random, about ``rate`` per second.

    System prompts have so many words.

    Two of three begin with one to three images, and later turns may add one. A fifth of the images
    was sent by others before. An answer belongs to the prompt of the next turn.
    """
    chance = random.Random(seed)
    systems = [words(chance, chance.choice(system_words)) for _ in range(APPLICATIONS)]
    shared = [(chance.randbytes(16), chance.choice([256, 576, 1024])) for _ in range(12)]

    def image() -> tuple[bytes, int]:
        if chance.random() < 0.2:
            return chance.choice(shared)
        return chance.randbytes(16), chance.choice([64, 256, 576, 729, 1024, 1500])

    turns, begins_s = [], 0.0
    for conversation in range(num):
        begins_s += chance.expovariate(rate)
        now, prompt = begins_s, _Prompt()
        prompt.add("system", chance.choice(systems))
        first = [image() for _ in range(chance.choice([0, 1, 1, 1, 2, 3]))]
        for number in range(chance.choice([1, 2, 3, 4, 6, 10])):
            added = first if number == 0 else [image()] if chance.random() < 0.1 else []
            prompt.add("user", words(chance, chance.choice([5, 12, 40])), added)
            blocks = tuple(prompt.blocks())
            length = chance.choice([16, 64, 160])
            turns.append(
                Turn(
                    now,
                    conversation,
                    Request(messages=list(prompt.messages)),
                    blocks,
                    dict(prompt.images),
                    sum(num_tokens for _, num_tokens in prompt.tokens),
                    length,
                )
            )
            prompt.add("assistant", words(chance, length * 2 // 3))
            now += length * TOKEN_S + 1.0 + chance.expovariate(1 / 12)
    return sorted(turns, key=lambda turn: turn.arrives_s)


class _Lru:
    """Entries with sizes, of which the least recently used leave."""

    def __init__(self, capacity: int) -> None:
        self._capacity, self._size = capacity, 0
        self._entries: OrderedDict[object, int] = OrderedDict()

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def add(self, key: object, size: int) -> None:
        self._size += size - self._entries.pop(key, 0)
        self._entries[key] = size
        while self._size > self._capacity:
            self._size -= self._entries.popitem(last=False)[1]


class SimulatedWorker:
    """A worker with its caches.

    Attributes:
        computed_tokens: tokens of prompts and images that it computed.
        saved_tokens: those that it found in its caches.
        num_open: requests that are not finished.
        free_at_s: when all prompts so far are computed.
    """

    def __init__(
        self, name: str, prefix_tokens: int, feature_tokens: int, tokens_per_s: float
    ) -> None:
        self.name = name
        self._tokens_per_s = tokens_per_s
        self.computed_tokens = self.saved_tokens = self.num_open = 0
        self.waiting_tokens = 0
        self._prefixes, self._features = _Lru(prefix_tokens), _Lru(feature_tokens)
        self.free_at_s = 0.0
        self._events: list[tuple[float, int]] = []  # when waiting tokens or an open request end

    def cost(self, turn: Turn) -> tuple[int, int]:
        """Return the tokens that the caches save, and those to compute, features included."""
        num_known = next(
            (i for i, key in enumerate(turn.blocks) if key not in self._prefixes), len(turn.blocks)
        )
        prefix = num_known * turn.block_tokens
        features = sum(n for image, n in turn.images.items() if image in self._features)
        total = turn.num_tokens + sum(turn.images.values())
        return prefix + features, total - prefix - features

    def start(self, turn: Turn) -> None:
        """Compute a turn after all that came before."""
        saved, computed = self.cost(turn)
        self.saved_tokens += saved
        self.computed_tokens += computed
        for key in reversed(turn.blocks):
            self._prefixes.add(key, turn.block_tokens)
        for image, num_tokens in turn.images.items():
            self._features.add(image, num_tokens)
        begun_s = max(self.free_at_s, turn.arrives_s)
        self.free_at_s = begun_s + computed / self._tokens_per_s
        self.waiting_tokens += computed
        self.num_open += 1
        heapq.heappush(self._events, (self.free_at_s, computed))
        heapq.heappush(self._events, (self.free_at_s + turn.completion_tokens * TOKEN_S, 0))

    def advance(self, now_s: float) -> None:
        """Take all that ended before a time out of the queue."""
        while self._events and self._events[0][0] <= now_s:
            _, computed = heapq.heappop(self._events)
            self.waiting_tokens -= computed
            self.num_open -= not computed


class Policy(Protocol):
    """Chooses the worker of a turn."""

    def __call__(self, turn: Turn, workers: Sequence[SimulatedWorker]) -> int: ...


def round_robin() -> Policy:
    """Each worker after the one before."""
    numbers = itertools.count()
    return lambda turn, workers: next(numbers) % len(workers)


def fewest_open() -> Policy:
    """The worker with the fewest open requests."""
    return lambda turn, workers: min(range(len(workers)), key=lambda i: workers[i].num_open)


def consistent_hash() -> Policy:
    """A ring with 100 points for each worker; the key is the first question with its images."""

    def point(text: str) -> int:
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())

    @cache
    def ring_of(num: int) -> list[tuple[int, int]]:
        return sorted((point(f"{i}:{n}"), i) for i in range(num) for n in range(100))

    def policy(turn: Turn, workers: Sequence[SimulatedWorker]) -> int:
        ring = ring_of(len(workers))
        key = point(repr(turn.request.messages[:2]))
        return ring[bisect.bisect(ring, (key, 0)) % len(ring)][1]

    return policy


def cache_aware(*, match: float = 0.5, absolute: int = 32, relative: float = 1.1) -> Policy:
    """The policy ``cache_aware`` of SGLang's router, with its default thresholds.

    The worker with the longest matching prefix of the text, if half of the text matches; otherwise
    the one with the smallest tree. If loads differ by more than both thresholds, the one with the
    fewest open requests. Images are not compared.
    """
    trees: dict[int, set[bytes]] = {}

    def prefixes(turn: Turn) -> list[bytes]:
        texts = "".join(
            part.text
            for message in turn.request.messages
            for part in message.parts
            if isinstance(part, TextPart)
        )
        key, found = hashlib.blake2b(digest_size=8), []
        for start in range(0, len(texts), 64):
            key.update(texts[start : start + 64].encode())
            found.append(key.digest())
        return found

    def policy(turn: Turn, workers: Sequence[SimulatedWorker]) -> int:
        places, keys = range(len(workers)), prefixes(turn)
        loads = [worker.num_open for worker in workers]
        if max(loads) - min(loads) > absolute and max(loads) > relative * min(loads):
            chosen = min(places, key=loads.__getitem__)
        else:
            known = [
                next((n for n, key in enumerate(keys) if key not in trees.get(i, ())), len(keys))
                for i in places
            ]
            best = max(places, key=known.__getitem__)
            smallest = min(places, key=lambda i: len(trees.get(i, ())))
            chosen = best if known[best] > match * len(keys) else smallest
        trees.setdefault(chosen, set()).update(keys)
        return chosen

    return policy


class _Gateway:
    """What one gateway knows: of the sizes of prompts, and of the caches of workers."""

    def __init__(self, capacity_tokens: int) -> None:
        self.sizes = TokenSizes()
        self.estimates: dict[int, CacheEstimate] = defaultdict(
            lambda: CacheEstimate(capacity_tokens)
        )


def by_content(
    capacity_tokens: int, *, num_gateways: int = 1, are_estimates_shared: bool = True
) -> Policy:
    """The routing of vlmkit's fleet.

    Args:
        capacity_tokens: size of each worker's prefix cache.
        num_gateways: number of gateways, which get one turn after another.
        are_estimates_shared: whether each learns of the prompts of the others, a moment later.
    """
    gateways = [_Gateway(capacity_tokens) for _ in range(num_gateways)]
    numbers = itertools.count()
    shown: deque[tuple[float, _Gateway, int, list[Segment], list[int]]] = deque()

    def show(now_s: float) -> None:
        while shown and shown[0][0] <= now_s:
            _, sender, place, parts, sizes = shown.popleft()
            for other in gateways:
                if other is not sender:
                    other.estimates[place].add(parts, sizes)

    def policy(turn: Turn, workers: Sequence[SimulatedWorker]) -> int:
        show(turn.arrives_s)
        gateway = gateways[next(numbers) % num_gateways]
        parts = segments(turn.request)
        estimated = gateway.sizes.of(parts)
        candidates = [
            Candidate(
                worker.name,
                gateway.estimates[place].held_tokens(parts, estimated),
                worker.waiting_tokens + SEQUENCE_TOKENS * worker.num_open,
                worker.num_open,
            )
            for place, worker in enumerate(workers)
        ]
        chosen = choose(
            candidates,
            affinity_of(parts),
            sum(estimated),
            are_estimates_shared=are_estimates_shared,
        ).place
        num_images = sum(turn.images.values())
        gateway.sizes.learn(parts, turn.num_tokens - num_images, list(turn.images.values()))
        sizes = gateway.sizes.of(parts)
        gateway.estimates[chosen].add(parts, sizes)
        if are_estimates_shared:
            shown.append((turn.arrives_s + SHOWN_S, gateway, chosen, parts, sizes))
        return chosen

    return policy


@dataclass(frozen=True)
class Outcome:
    """What a policy did.

    Attributes:
        saved: tokens saved, relative to those of one worker with all the memory.
        highest_load: tokens computed by the busiest worker, relative to the mean.
        mean_wait_s: time of a turn before its first token.
    """

    saved: float
    highest_load: float
    mean_wait_s: float


def outcome(
    turns: Sequence[Turn],
    make: Callable[[], Policy],
    num_workers: int,
    prefix_tokens: int,
    feature_tokens: int,
    tokens_per_s: float = PREFILL_TOKENS_PER_S,
) -> Outcome:
    """Route all turns, and compare with an oracle: one worker that has the memory of all."""
    policy = make()
    workers = [
        SimulatedWorker(f"worker-{i}:50051", prefix_tokens, feature_tokens, tokens_per_s)
        for i in range(num_workers)
    ]
    oracle = SimulatedWorker(
        "all", prefix_tokens * num_workers, feature_tokens * num_workers, tokens_per_s
    )
    waited_s = 0.0
    for turn in turns:
        for worker in workers:
            worker.advance(turn.arrives_s)
        chosen = workers[policy(turn, workers)]
        chosen.start(turn)
        waited_s += chosen.free_at_s - turn.arrives_s
        oracle.start(turn)
    computed = [worker.computed_tokens for worker in workers]
    return Outcome(
        sum(worker.saved_tokens for worker in workers) / oracle.saved_tokens,
        max(computed) * num_workers / sum(computed),
        waited_s / len(turns),
    )
