"""A runner whose requests another server answers.

One thread runs an event loop with all connections; methods of the runner hand their work to it.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Sequence as Seq
from functools import partial
from typing import Any, TypeVar, cast

import httpx2

from vlmkit.errors import EngineError, EngineFailed, QueueFull, RequestError, VlmkitError
from vlmkit.interfaces.engine import EngineLimits
from vlmkit.interfaces.runner import Admit, RunnerFacts
from vlmkit.kit.answer_stream import AnswerBuffer, AnswerReader
from vlmkit.settings.pipeline import PipelineSettings
from vlmkit.types.completion import Chunk, FinishReason
from vlmkit.types.delta import TextDelta
from vlmkit.types.demand import Demand
from vlmkit.types.prompt_tokens import PromptTokens
from vlmkit.types.request import Request
from vlmkit.types.runner_stats import RunnerStats
from vlmkit.types.sample import Sample
from vlmkit.types.sampling import SamplingParams
from vlmkit_yourname.body import checked_params, completion_body, prompt_body
from vlmkit_yourname.client import Client, Event, Text, Tokens, events
from vlmkit_yourname.plugin import RemoteSettings

T = TypeVar("T")
MAX_TABLE_REQUESTS = 32


class RemoteRunner:
    """Sends requests to another server, and fails for good when that is gone.

    Args:
        reference: the reference of the model.
        name: what clients call the model.
        settings: what is known of the other server.
        bounds: limits of one request.

    Raises:
        EngineError: the other server cannot be reached, or does not have the model.
    """

    def __init__(
        self, reference: str, name: str, settings: RemoteSettings, bounds: PipelineSettings
    ) -> None:
        self._settings = settings
        self._table: list[bytes] = []
        self._open: dict[AnswerBuffer, tuple[asyncio.Task[None], asyncio.Event]] = {}
        self._num_starting = 0
        self._counters = dict.fromkeys(("num_finished", "num_aborted", "num_failed"), 0)
        self._is_draining = self._is_closed = False
        self._failure: EngineFailed | None = None
        self._callbacks: list[Callable[[BaseException], None]] = []
        self._changed = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        try:
            self._client, model = self._wait(self._connected(reference))
            self._table = self._wait(self._read_table())
        except BaseException:
            self.close()
            raise
        most = cast("int", model.max_model_len)
        self.facts = RunnerFacts(
            name=name,
            limits=EngineLimits(
                vocab_size=settings.vocab_size,
                max_sequence_tokens=most,
                max_sequences=settings.max_requests,
                capacity_tokens=most * settings.max_requests,
                max_chunk_tokens=most,
            ),
            modalities=("text",),
            eos_ids=frozenset(settings.eos_ids),
            defaults=SamplingParams(),
            bounds=bounds,
        )
        self._watch = asyncio.run_coroutine_threadsafe(self._keep_watch(), self._loop)

    # Requests.

    def submit(self, request: Request, admit: Admit | None = None) -> AnswerReader:
        """Start a request and return the stream of its answer."""
        return self._wait(self._started(request, admit))

    async def asubmit(self, request: Request, admit: Admit | None = None) -> AnswerReader:
        """Start a request without blocking the event loop."""
        return await self._result(self._started(request, admit))

    async def atokenize(self, request: Request) -> PromptTokens:
        """Return the tokens of a request's prompt."""
        self._refuse_if_ended()
        return await self._result(self._tokenized(request))

    def detokenize(self, token_ids: Seq[int]) -> str:
        """Return the text of tokens, without special tokens."""
        if not all(0 <= token_id < self._settings.vocab_size for token_id in token_ids):
            raise RequestError("a token is not in the vocabulary", param="token_ids")
        body = {"tokens": list(token_ids)}
        return self._wait(self._client.post("/detokenize", body, Text)).prompt

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of one token; those of a part of a character are not known."""
        if not 0 <= token_id < len(self._table):
            raise RequestError("a token is not in the vocabulary", param="token_ids")
        return self._table[token_id]

    def token_table(self) -> Seq[bytes]:
        """Return the bytes of all tokens, which were read when the runner was built."""
        return self._table

    # State.

    @property
    def is_ready(self) -> bool:
        """Whether requests can be answered."""
        return not self._is_closed and self._failure is None

    @property
    def is_full(self) -> bool:
        """Whether a request would be refused now."""
        return self._num_open >= self._settings.max_requests

    def on_failure(self, tell: Callable[[BaseException], None]) -> None:
        """Call a function with the error when the other server is gone."""
        with self._changed:
            if self._failure is None:
                self._callbacks.append(tell)
                return
        tell(self._failure)

    def stats(self) -> RunnerStats:
        """Return the number of open requests, and totals."""
        return RunnerStats(self._num_open, 0, 0, 0, dict(self._counters), {})

    def drain(self, timeout_s: float) -> bool:
        """Refuse new requests and wait for the running ones."""
        with self._changed:
            self._is_draining = True
            return self._changed.wait_for(lambda: not self._num_open, timeout_s)

    def close(self) -> None:
        """Abort all requests and close all connections."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
        self._wait(self._ended())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def _num_open(self) -> int:
        return self._num_starting + len(self._open)

    # In the thread of the event loop.

    async def _connected(self, reference: str) -> tuple[Client, Any]:
        settings = self._settings
        client = Client(reference, tls=settings.tls, api_key=settings.api_key)
        try:
            return client, await client.find_model()
        except httpx2.TransportError as error:
            await client.aclose()
            raise EngineError(
                f"the other server cannot be reached: {type(error).__name__}"
            ) from error
        except BaseException:
            await client.aclose()
            raise

    async def _read_table(self) -> list[bytes]:
        """Return the bytes of every token: ``token_bytes`` must not wait for another server.

        If your server can return its vocabulary, replace this by one request.
        """
        table: list[bytes] = []
        while (num_left := self._settings.vocab_size - len(table)) > 0:
            ids = range(len(table), len(table) + min(num_left, MAX_TABLE_REQUESTS))
            found = await asyncio.gather(*map(self._bytes_of, ids), return_exceptions=True)
            for content in found:
                if isinstance(content, BaseException):
                    raise content
                table.append(content)
        return table

    async def _bytes_of(self, token_id: int) -> bytes:
        try:
            asked = self._client.post("/detokenize", {"tokens": [token_id]}, Text)
            return (await self._reached(asked)).prompt.encode()
        except QueueFull:
            raise
        except RequestError:  # only the logits have the token
            return b""

    async def _keep_watch(self) -> None:
        while self._failure is None:
            await asyncio.sleep(self._settings.check_interval_s)
            await self._check()

    async def _check(self) -> None:
        """Fail for good if the other server is gone."""
        try:
            await self._client.find_model()
        except (httpx2.TransportError, VlmkitError) as error:
            self._fail(EngineFailed(f"the other server is gone: {type(error).__name__}"))

    def _fail(self, error: EngineFailed) -> None:
        for buffer, (_, caught_up) in list(self._open.items()):
            buffer.fail(error)
            caught_up.set()
        with self._changed:
            if self._failure is not None:
                return
            self._failure = error
            callbacks, self._callbacks = self._callbacks, []
        for tell in callbacks:
            tell(error)

    async def _tokenized(self, request: Request) -> PromptTokens:
        if request.token_ids is not None:
            return PromptTokens(tuple(request.token_ids))
        found = await self._reached(self._client.post("/tokenize", prompt_body(request), Tokens))
        return PromptTokens(tuple(found.tokens))

    async def _reached(self, asked: Coroutine[Any, Any, T]) -> T:
        """Return the answer of the other server; if it cannot be reached, check why."""
        try:
            return await asked
        except httpx2.TransportError as error:
            await self._check()
            raise self._failure or EngineError(
                f"the connection to the other server failed: {type(error).__name__}"
            ) from error

    async def _started(self, request: Request, admit: Admit | None) -> AnswerReader:
        self._refuse_if_ended()
        if self._is_draining:
            raise EngineError("this model takes no more requests")
        if self.is_full:
            raise QueueFull("the other server has too many requests")
        self._num_starting += 1
        try:
            return await self._sent(request, admit)
        finally:
            self._num_starting -= 1
            self._note_change()

    async def _sent(self, request: Request, admit: Admit | None) -> AnswerReader:
        began = time.perf_counter()
        asked = request.params or self.facts.defaults
        prompt = await self._tokenized(request)
        params = checked_params(request, asked, prompt.token_ids, self.facts)
        num_tokens = cast("int", params.max_tokens) * params.n
        if admit is not None:
            admit(Demand(len(prompt.token_ids), (), num_tokens, params.n))
        self._refuse_if_ended()
        body = completion_body(request, params, prompt.token_ids)
        caught_up = asyncio.Event()
        buffer = AnswerBuffer(
            prompt.token_ids,
            params.n,
            max_unread=self.facts.bounds.max_unread_tokens * params.n,
            began=began,
            on_abort=lambda: self._call(stop),
            on_caught_up=lambda: self._call(caught_up.set),
        )
        accepted: asyncio.Future[None] = self._loop.create_future()
        task = self._loop.create_task(self._read(body, buffer, accepted, caught_up))
        stop = task.cancel
        self._open[buffer] = task, caught_up
        task.add_done_callback(partial(self._note_end, buffer))
        reader = AnswerReader(buffer)  # dropping it cancels the task
        await accepted
        return reader

    async def _read(
        self,
        body: dict[str, Any],
        buffer: AnswerBuffer,
        accepted: "asyncio.Future[None]",
        caught_up: asyncio.Event,
    ) -> None:
        """Send a request, and read its answer into a buffer."""

        async def answered() -> None:
            async with self._client.stream("/v1/completions", body) as response:
                if not accepted.done():
                    accepted.set_result(None)
                async for event in events(response):
                    _put(event, buffer)
                    while buffer.is_behind and not buffer.is_done:
                        caught_up.clear()
                        await caught_up.wait()
                    if self._failure is not None:
                        return
            buffer.fail(EngineError("the other server ended its answer too early"))

        try:
            await self._reached(answered())
        except VlmkitError as error:
            buffer.fail(error)
            if not accepted.done():
                accepted.set_exception(error)
        finally:
            if not accepted.done():
                accepted.cancel()

    def _note_end(self, buffer: AnswerBuffer, task: "asyncio.Task[None]") -> None:
        del self._open[buffer]
        is_finished = len(buffer.reasons) == buffer.num_choices and "abort" not in buffer.reasons
        if not task.cancelled() and (error := task.exception()) is not None:
            buffer.fail(EngineError(f"the answer could not be read: {type(error).__name__}"))
        kind = "finished" if is_finished else "aborted" if task.cancelled() else "failed"
        self._counters[f"num_{kind}"] += 1
        self._note_change()

    async def _ended(self) -> None:
        """Abort all requests, and close all connections."""
        if hasattr(self, "_watch"):
            self._watch.cancel()
        for buffer in list(self._open):
            buffer.abort()
        if tasks := [task for task, _ in self._open.values()]:
            await asyncio.wait(tasks)
        if hasattr(self, "_client"):
            await self._client.aclose()

    def _note_change(self) -> None:
        with self._changed:
            self._changed.notify_all()

    # From any thread.

    def _refuse_if_ended(self) -> None:
        if self._failure is not None:
            raise EngineFailed(str(self._failure))
        if self._is_closed:
            raise EngineError(f"model {self.facts.name!r} is closed")

    def _call(self, function: Callable[[], object]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop.is_closed():
            work.close()
            raise EngineError("this model is closed")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _result(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop.is_closed():
            work.close()
            raise EngineError("this model is closed")
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))


def _put(event: Event, buffer: AnswerBuffer) -> None:
    """Add the content of an event to a buffer."""
    for choice in event.choices:
        ids, reason = choice.token_ids or (), choice.finish_reason
        if not (choice.text or ids or reason):
            continue  # it repeats the prompt
        deltas = (TextDelta(choice.text),) if choice.text else ()
        samples = tuple(Sample(token_id) for token_id in ids)
        ended: FinishReason | None = (
            ("length" if reason == "length" else "stop") if reason else None
        )
        buffer.put(Chunk(choice.index, deltas, samples, ended))
