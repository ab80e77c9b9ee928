"""Runners that lose a part of a request or of its answer, or treat one way of asking otherwise."""

import asyncio
import dataclasses

import msgspec

import vlmkit
from broken.broken import Broken
from vlmkit.errors import EngineError, QueueFull, RequestError
from vlmkit.running.engine_loop.stream import Stream
from vlmkit.types.prompt_options import PromptOptions
from vlmkit.types.sample import Sample


class WithStreams(vlmkit.Pipeline):
    stream = Stream

    def submit(self, request, admit=None):
        made = super().submit(request, admit)
        made.__class__ = self.stream
        return made

    async def asubmit(self, request, admit=None):
        made = await super().asubmit(request, admit)
        made.__class__ = self.stream
        return made


class StreamOfTokens(Stream):
    def __iter__(self):
        for chunk in super().__iter__():
            plain = tuple(Sample(sample.token_id) for sample in chunk.samples)
            yield msgspec.structs.replace(chunk, samples=plain)


class StreamsNoLogprobs(WithStreams):
    stream = StreamOfTokens


class StreamWithoutStopStrings(Stream):
    async def next_chunks(self):
        chunks = await super().next_chunks()
        return [msgspec.structs.replace(chunk, stop_string=None) for chunk in chunks]


class StreamsNoStopStrings(WithStreams):
    stream = StreamWithoutStopStrings


class StreamWithoutVectors(Stream):
    async def aresult(self):
        done = await super().aresult()
        for choice in done.choices:
            choice.embedding = None
        return done


class ReturnsNoVectors(WithStreams):
    stream = StreamWithoutVectors


class StreamWithSwappedChoices(Stream):
    async def aresult(self):
        done = await super().aresult()
        return dataclasses.replace(done, choices=done.choices[::-1])


class SwapsChoices(WithStreams):
    stream = StreamWithSwappedChoices


class StreamThatForgets(Stream):
    def result(self):
        done = super().result()
        for choice in done.choices:
            if choice.finish_reason == "abort":
                choice.samples = []
        return done


class DropsAbortedAnswers(WithStreams):
    stream = StreamThatForgets


class DropsTools(vlmkit.Pipeline):
    def submit(self, request, admit=None):
        return super().submit(dataclasses.replace(request, tools=None), admit)

    async def atokenize(self, request):
        return await super().atokenize(dataclasses.replace(request, tools=None))


class CountsAllTextsAlike(vlmkit.Pipeline):
    async def atokenize(self, request):
        return await super().atokenize(dataclasses.replace(request, adds_special=True))


class DemandsNoImages(vlmkit.Pipeline):
    def submit(self, request, admit=None):
        def other(demand):
            admit(dataclasses.replace(demand, image_tokens=()))

        return super().submit(request, admit and other)


class DropsOptions(vlmkit.Pipeline):
    async def atokenize(self, request):
        return await super().atokenize(dataclasses.replace(request, options=PromptOptions()))


class AdmitsTwiceInAnEventLoop(vlmkit.Pipeline):
    async def asubmit(self, request, admit=None):
        return await super().asubmit(request, admit and (lambda d: (admit(d), admit(d))))


class KeepsOnlyItsOwnErrors(vlmkit.Pipeline):
    def submit(self, request, admit=None):
        def decided(demand):
            try:
                admit(demand)
            except QueueFull:
                raise
            except Exception as error:
                raise EngineError("it failed") from error

        return super().submit(request, admit and decided)


class AdmitsInTheEventLoop(vlmkit.Pipeline):
    async def asubmit(self, request, admit=None):
        loop = asyncio.get_running_loop()

        async def decide(demand):
            admit(demand)

        def asked(demand):
            asyncio.run_coroutine_threadsafe(decide(demand), loop).result()

        return await super().asubmit(request, admit and asked)


class FinishesCancelledCalls(vlmkit.Pipeline):
    """Starts a request in a task of its own, which goes on when the caller is cancelled."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.starting = set()

    async def asubmit(self, request, admit=None):
        task = asyncio.ensure_future(super().asubmit(request, admit))
        self.starting.add(task)
        made = await asyncio.shield(task)
        self.starting.remove(task)
        return made


class KeepsAnswersUntilTheyAreTaken(vlmkit.Pipeline):
    """Starts a request in a thread, and keeps the answer of a caller that was cancelled."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.untaken = {}

    async def asubmit(self, request, admit=None):
        key = object()

        def start():
            self.untaken[key] = self.submit(request, admit)

        await asyncio.to_thread(start)
        return self.untaken.pop(key)


class NeedsParameters(vlmkit.Pipeline):
    def submit(self, request, admit=None):
        if request.params is None:
            raise RequestError("there are no parameters")
        return super().submit(request, admit)


class LowersNothing(vlmkit.Pipeline):
    def submit(self, request, admit=None):
        return super().submit(dataclasses.replace(request, clamp_max_tokens=False), admit)


class LowersEverything(vlmkit.Pipeline):
    def submit(self, request, admit=None):
        return super().submit(dataclasses.replace(request, clamp_max_tokens=True), admit)


class BlamesClientsOfItsEnd(vlmkit.Pipeline):
    async def asubmit(self, request, admit=None):
        if not self.is_ready:
            raise RequestError("it is closed")
        return await super().asubmit(request, admit)


class ForgetsItsFacts(vlmkit.Pipeline):
    @property
    def facts(self):
        is_closed = getattr(self, "_is_closed", False)
        return dataclasses.replace(self._facts, name="") if is_closed else self._facts

    @facts.setter
    def facts(self, facts):
        self._facts = facts


class HasAnotherTableOfEnds(vlmkit.Pipeline):
    def token_table(self):
        table = list(super().token_table())
        for token_id in self.facts.eos_ids:
            table[token_id] = b"<end>"
        return table


class DetokenizesEnds(vlmkit.Pipeline):
    def detokenize(self, token_ids):
        num_ends = sum(token_id in self.facts.eos_ids for token_id in token_ids)
        return super().detokenize(token_ids) + "<end>" * num_ends


CANCELLED = "a_request_that_is_cancelled_before_it_is_accepted_ends"
READ = "each_kind_of_answer_is_the_same_however_it_is_read"
PROMPT = "each_part_of_a_request_is_in_its_prompt"
ADMITTED = "admission_is_the_same_in_an_event_loop"
BROKEN = (
    Broken(StreamsNoLogprobs, "Chunks have the log-probabilities of their tokens.", READ),
    Broken(StreamsNoStopStrings, "The last chunk of a choice has its stop string.", READ),
    Broken(ReturnsNoVectors, "A completion has the vector of an embedded text.", READ),
    Broken(SwapsChoices, "The choices of a completion are in the order of their index.", READ),
    Broken(DropsTools, "The tools of a request are in its prompt.", PROMPT),
    Broken(CountsAllTextsAlike, "atokenize() returns the tokens that an answer uses.", PROMPT),
    Broken(DemandsNoImages, "A demand states the tokens of each image.", PROMPT),
    Broken(
        DropsOptions,
        "The options of a request reach its prompt.",
        "the_reasoning_effort_reaches_the_prompt",
    ),
    Broken(AdmitsTwiceInAnEventLoop, "asubmit() calls the admission callback once.", ADMITTED),
    Broken(
        KeepsOnlyItsOwnErrors,
        "Any error of the admission callback is raised unchanged.",
        ADMITTED,
        raises=(EngineError,),
    ),
    Broken(
        AdmitsInTheEventLoop,
        "asubmit() does not block the event loop while admission waits.",
        "an_admission_that_waits_holds_no_event_loop",
    ),
    Broken(FinishesCancelledCalls, "A cancelled asubmit() starts no answer.", CANCELLED),
    Broken(KeepsAnswersUntilTheyAreTaken, "An answer without a caller frees its room.", CANCELLED),
    Broken(
        NeedsParameters,
        "A request without parameters uses the defaults of the model.",
        "a_request_without_parameters_uses_the_defaults",
        raises=(RequestError,),
    ),
    Broken(
        LowersNothing,
        "With clamp_max_tokens, a too large max_tokens is lowered.",
        "too_many_answer_tokens_are_refused_or_lowered",
        raises=(RequestError,),
    ),
    Broken(
        LowersEverything,
        "Without clamp_max_tokens, a too large max_tokens is refused.",
        "too_many_answer_tokens_are_refused_or_lowered",
    ),
    Broken(
        DropsAbortedAnswers,
        "The completion of an aborted answer has what was generated.",
        "an_aborted_answer_keeps_what_was_generated",
    ),
    Broken(
        BlamesClientsOfItsEnd,
        "A closed runner raises an EngineError, in an event loop, too.",
        "closing_ends_everything",
        raises=(RequestError,),
    ),
    Broken(ForgetsItsFacts, "The facts stay when the runner is closed.", "closing_ends_everything"),
    Broken(
        HasAnotherTableOfEnds,
        "The item of each token equals token_bytes(), also of a special token.",
        "its_token_table_has_the_bytes_of_its_tokens",
    ),
    Broken(
        DetokenizesEnds,
        "detokenize() returns a text without the tokens that end an answer.",
        "a_prompt_can_be_tokenized_without_an_answer",
    ),
)
