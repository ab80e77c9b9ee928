"""The runner of several workers: routes requests, and starts them again if a worker is lost."""

import asyncio
import logging
import threading
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from vlmkit.errors import EngineError, EngineFailed, QueueFull, WorkerLost
from vlmkit.interfaces.runner import Admit, AnswerStream
from vlmkit.running.fleet.cache_estimate import TokenSizes
from vlmkit.running.fleet.prompt_keys import (
    LARGE_BYTES,
    Segment,
    affinity_of,
    num_content_bytes,
    segments,
)
from vlmkit.running.fleet.routing import SEQUENCE_TOKENS, Candidate, choose
from vlmkit.running.fleet.stream import FleetStream
from vlmkit.running.fleet.waiting_tokens import waiting_tokens
from vlmkit.running.remote_runner.runner import RemoteRunner
from vlmkit.running.replicas import Replicas, admitted_once
from vlmkit.types.demand import Demand
from vlmkit.types.request import Request
from vlmkit_grpc.peer import GrpcPeer

log = logging.getLogger(__name__)

MAX_WORKERS = 3
"""The most workers that one request is sent to, one after another."""


@dataclass(eq=False)
class _Route:
    """A request on its way: what it needs, and which workers had it.

    Attributes:
        request: the request.
        admit: decides on its demand, once.
        parts: the parts of its prompt.
        sizes: the number of tokens of each part.
        affinity: decides where nothing is known of any worker.
        tried: the places of the workers that it was sent to.
        waiting_tokens: what it adds to the queue of its worker before its first token.
    """

    request: Request
    admit: Admit | None
    parts: Seq[Segment]
    sizes: Seq[int]
    affinity: bytes
    tried: list[int] = field(default_factory=list)
    waiting_tokens: int = 0


class _Worker:
    """A worker as the fleet sees it.

    Attributes:
        runner: sends it requests.
        peer: knows what its caches hold.
        waiting_tokens: tokens of prompts that were sent to it, and have no answer yet.
    """

    def __init__(self, runner: RemoteRunner, peer: GrpcPeer) -> None:
        self.runner = runner
        self.peer = peer
        self.waiting_tokens = 0

    def candidate(self, route: _Route) -> Candidate:
        """Return what routing knows of the worker for a request."""
        stats = self.runner.stats()
        num_sequences = stats.num_running + stats.num_waiting
        others = waiting_tokens(stats)  # of all gateways
        return Candidate(
            self.peer.who,
            self.peer.estimate.held_tokens(route.parts, route.sizes),
            max(self.waiting_tokens, others) + SEQUENCE_TOKENS * num_sequences,
            num_sequences,
            self.runner.is_full,
        )


class FleetRunner(Replicas):
    """Answers requests with several workers of one model.

    A request goes to the worker that saves most of its prompt, or has least to do; see
    :mod:`vlmkit.running.fleet.routing`. If the worker is lost, another one answers with the same
    seed. A request with which two workers were lost is refused.

    Args:
        runners: the workers.
        peers: the peers of the workers, in the same order.
    """

    def __init__(self, runners: Seq[RemoteRunner], peers: Seq[GrpcPeer]) -> None:
        super().__init__(runners)
        self._workers = [_Worker(*each) for each in zip(runners, peers, strict=True)]
        self._token_sizes = TokenSizes()
        self._routing = threading.Lock()

    def submit(self, request: Request, admit: Admit | None = None) -> AnswerStream:
        """Start a request on the best worker.

        Args:
            request: the request.
            admit: called once, also if a second worker gets the request.

        Raises:
            RequestError: the request is invalid or too long, the queues are full, or two workers
                were lost with it.
            EngineError: no worker can answer.
        """
        route = self._route(request, admit)
        place, stream = self._start(route)
        return self._stream(route, place, stream)

    async def asubmit(self, request: Request, admit: Admit | None = None) -> AnswerStream:
        """Start a request on the best worker; return when it is accepted.

        Args:
            request: the request.
            admit: called once, also if a second worker gets the request.

        Raises:
            RequestError: the request is invalid or too long, the queues are full, or two workers
                were lost with it.
            EngineError: no worker can answer.
        """
        if num_content_bytes(request) > LARGE_BYTES:
            route = await asyncio.to_thread(self._route, request, admit)
        else:
            route = self._route(request, admit)
        while True:
            place = self._choose(route)
            try:
                stream = await self.runners[place].asubmit(request, self._admit(route, place))
            except (EngineError, QueueFull) as error:
                self._give_up(route, place, error)
            except BaseException:
                self._leave(route, place)
                raise
            else:
                return self._stream(route, place, stream)

    def none_ready(self) -> EngineError:
        """Return the error of a request while no worker is connected."""
        if not self.is_restarting:
            return super().none_ready()
        return WorkerLost(f"no worker of model {self.facts.name!r} is connected")

    # One request.

    def _route(self, request: Request, admit: Admit | None) -> _Route:
        parts = segments(request)
        return _Route(
            request,
            admitted_once(admit),
            parts,
            self._token_sizes.of(parts),
            affinity_of(parts),
        )

    def _choose(self, route: _Route) -> int:
        """Return the place of the best worker that has not had the request, and enqueue it there.

        Raises:
            EngineError: no worker can be reached.
        """
        with self._routing:
            ready = self.ready()
            places = [place for place in ready if place not in route.tried] or ready
            if not places:
                raise self.none_ready()
            candidates = [self._workers[place].candidate(route) for place in places]
            num_tokens = sum(route.sizes)
            choice = choose(candidates, route.affinity, num_tokens)
            place, chosen = places[choice.place], candidates[choice.place]
            route.tried.append(place)
            route.waiting_tokens = max(1, num_tokens - chosen.held_tokens)
            self._workers[place].waiting_tokens += route.waiting_tokens
        log.debug(
            "%s gets a request of %d tokens, holds %d and has %d to do: %s",
            *(chosen.name, num_tokens, chosen.held_tokens, chosen.queue_tokens, choice.reason),
        )
        return place

    def _admit(self, route: _Route, place: int) -> Admit:
        """Return an admission that learns from the demand which a worker reports."""

        def decide(demand: Demand) -> None:
            if route.admit is not None:
                route.admit(demand)
            self._token_sizes.learn(route.parts, demand.text_tokens, demand.image_tokens)
            self._workers[place].peer.note(route.parts, self._token_sizes.of(route.parts))

        return decide

    def _start(self, route: _Route) -> tuple[int, AnswerStream]:
        """Start a request on the best worker; return its place and the stream of the answer."""
        while True:
            place = self._choose(route)
            try:
                stream = self.runners[place].submit(route.request, self._admit(route, place))
            except (EngineError, QueueFull) as error:
                self._give_up(route, place, error)
            except BaseException:
                self._leave(route, place)
                raise
            else:
                return place, stream

    def _stream(self, route: _Route, place: int, stream: AnswerStream) -> AnswerStream:
        """Return the stream for the reader, which outlasts the worker."""

        def start_again(error: EngineError) -> AnswerStream:
            nonlocal place
            self._give_up(route, place, error)
            place, again = self._start(route)
            return again

        return FleetStream(stream, start_again, lambda: self._leave(route, place))

    def _leave(self, route: _Route, place: int) -> None:
        """Take a request out of the queue of its worker: its answer begins, or it ended."""
        with self._routing:
            self._workers[place].waiting_tokens -= route.waiting_tokens
            route.waiting_tokens = 0

    def _give_up(self, route: _Route, place: int, error: EngineError | QueueFull) -> None:
        """Take a request from a worker, so that another one may get it.

        Raises:
            VlmkitError: the error, if no other worker may.
        """
        self._leave(route, place)
        others = [each for each in self.ready() if each not in route.tried]
        if not others or len(route.tried) >= MAX_WORKERS or self._is_closed:
            if isinstance(error, EngineFailed) and self.is_ready:  # the fleet has not failed
                raise WorkerLost(str(error)) from error
            raise error
        log.warning("a request goes to another worker: %s", error)
