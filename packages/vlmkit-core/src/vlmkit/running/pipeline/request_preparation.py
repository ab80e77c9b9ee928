"""From a request to sequences: checked parameters, a built prompt, a sequence for each choice.

It runs in the caller's thread or in a worker thread, never in the loop's. It enqueues nothing and
opens no stream.
"""

import itertools
import secrets
from collections.abc import Callable, Mapping, Sequence as Seq
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from vlmkit.checkpoints.pooling import Pooled, Pooling
from vlmkit.errors import PromptTooLong, RequestError
from vlmkit.interfaces.cancellation import Cancellation
from vlmkit.interfaces.engine import Engine
from vlmkit.interfaces.prompt import Prompt, PromptPlan
from vlmkit.interfaces.runner import RunnerFacts
from vlmkit.interfaces.sequence import Sequence
from vlmkit.interfaces.tokenizer import Tokenizer
from vlmkit.running.constraints.tool_calls import AnswerPlan, plan_answer
from vlmkit.running.engine_loop.answer_text import AnswerText
from vlmkit.running.engine_loop.grounding import answer_grounding, check_grounding
from vlmkit.running.engine_loop.job import AnswerJob, Job, PrefillJob
from vlmkit.running.engine_loop.stream import Channel
from vlmkit.running.faults.attribution import ComponentNames, attributing
from vlmkit.running.pipeline.answer_constraints import AnswerConstraints
from vlmkit.running.pipeline.cache_scopes import CacheScopes, FieldValues
from vlmkit.running.pipeline.embed_and_score import check_task, to_embed, to_score
from vlmkit.running.prompting.parameters import checked_params, with_min_length
from vlmkit.running.prompting.prompt_builder import PromptBuilder
from vlmkit.running.sampling.dry_breakers import SequenceBreakers
from vlmkit.running.sampling.random_numbers import choice_seed
from vlmkit.running.scheduling.decode_memory import DecodeLease
from vlmkit.types.message import Message, image_parts_of, images_of
from vlmkit.types.request import Request
from vlmkit.types.sampling import SamplingParams
from vlmkit.types.stage import ImageTimings


class PreparedRequest(NamedTuple):
    """A request that is ready for the loop.

    Attributes:
        params: its parameters, completed by the model's defaults.
        prompt: what every choice starts from.
        sequences: one for each choice.
        pages: for each image of the prompt the page of its document, or None.
        images: the timings of each image, by its index among the prompt's media.
        sent: which of the client's images and files each image comes from, by that index.
        opened_pixels: number of pixels of the images that come from files.
    """

    params: SamplingParams
    prompt: Prompt
    sequences: list[Sequence]
    pages: Seq[int | None]
    images: Mapping[int, ImageTimings]
    sent: Mapping[int, int]
    opened_pixels: int


class RequestPreparation:
    """Makes the sequences of each request for one model.

    Args:
        tokenizer: the model's text side.
        prompts: builds prompts.
        engine: plans prompts.
        facts: the model's name and defaults, the engine's limits, and the operator's bounds.
        pooling: returns how hidden states become a vector.
        constraints: makes the grammar states of answers.
        scopes: checks fields that plugins added to requests, and computes cache scopes.
        names: the names of the components in errors.

    Attributes:
        constraints: makes the grammar states of answers.
    """

    def __init__(
        self,
        *,
        tokenizer: Tokenizer,
        prompts: PromptBuilder,
        engine: Engine,
        facts: RunnerFacts,
        pooling: Callable[[], Pooling],
        constraints: AnswerConstraints,
        scopes: CacheScopes,
        names: ComponentNames,
    ) -> None:
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._engine = engine
        self._facts = facts
        self._limits = facts.limits
        self._pooling = pooling
        self.constraints = constraints
        self._scopes = scopes
        self._names = names
        self._special_tokens = constraints.special_tokens
        self._breakers = SequenceBreakers(tokenizer, self._limits.vocab_size)
        self._ids = itertools.count()

    def prepare(self, request: Request, lease: DecodeLease) -> PreparedRequest:
        """Return a request's sequences and what its answer states about the prompt.

        Args:
            request: the request.
            lease: memory to decode its images in.

        Raises:
            RequestError: the request is invalid or too long.
            OutOfMemory: this machine has no memory for its prompt now.
        """
        check_task(request, self._limits)
        if request.options.light:
            raise RequestError(
                "a light prompt has no pixels, so nothing can be computed from it", param="light"
            )
        params = checked_params(request, self._facts, self._tokenizer)
        fields = self._scopes.read_fields(request)
        built = self._prompts.build(request, lease)
        prompt = built.prompt
        if request.places:
            check_grounding(prompt)
        else:
            prompt = replace(prompt, place_format=None)
        answer = plan_answer(request, prompt, can_constrain=self.constraints.has_compiler)
        params = with_min_length(params, len(answer.prompt))
        sequences = self._sequences(request, answer, params, fields, lease.cancellation)
        if len(sequences) != params.n:  # a request for scores has a sequence for each text
            params = msgspec.structs.replace(params, n=len(sequences))
        pages = tuple(part.page for part in image_parts_of(built.messages))
        timings, sent = dict(built.image_timings()), built.sent_media()
        opened_pixels = _num_pixels(built.messages)
        opened_pixels -= _num_pixels(request.messages or built.messages)
        return PreparedRequest(
            params, answer.prompt, sequences, pages, timings, sent, opened_pixels
        )

    def _sequences(
        self,
        request: Request,
        answer: AnswerPlan,
        params: SamplingParams,
        fields: FieldValues,
        cancellation: Cancellation,
    ) -> list[Sequence]:
        scope = self._scopes.of(request, fields)
        choices = self._choices(request, answer, params, scope, cancellation)
        banned_ids = tuple(sorted(answer.banned_ids.union(self._special_tokens.banned_ids)))
        eos_ids = self._special_tokens.eos_ids.union(params.stop_token_ids)
        breakers = self._dry_breakers(params)
        # The prompt of each choice is a prefix of the request's, so its length identifies it.
        prompt_plans: dict[int, PromptPlan] = {}
        sequences = []
        for choice in choices:
            prompt = choice.pop("prompt", answer.prompt)
            if len(prompt) not in prompt_plans:
                prompt_plans[len(prompt)] = self._plan_prompt(prompt)
            sequences.append(
                Sequence(
                    id=f"{next(self._ids)}",
                    prompt=prompt,
                    params=params,
                    eos_ids=eos_ids,
                    banned_ids=banned_ids,
                    dry_breakers=breakers,
                    scope=scope,
                    priority=request.priority,
                    plan=prompt_plans[len(prompt)],
                    fields=fields.values,
                    field_identities=fields.identities,
                    **choice,
                )
            )
        return sequences

    def _dry_breakers(self, params: SamplingParams) -> Mapping[int, Seq[tuple[int, ...]]]:
        if not params.dry_multiplier or "dry_multiplier" in self._facts.sampler.ignores:
            return {}
        with attributing(self._names, "tokenizer", "dry_sequence_breakers"):
            return self._breakers.of(params.dry_sequence_breakers)

    def _choices(
        self,
        request: Request,
        answer: AnswerPlan,
        params: SamplingParams,
        scope: bytes,
        cancellation: Cancellation,
    ) -> list[dict[str, Any]]:
        """Return the arguments of :class:`Sequence` by which the choices of a request differ."""
        if request.task == "embed":
            return [to_embed(answer.prompt, self._pooling(), self._limits)]
        if request.task == "score":
            with attributing(self._names, "tokenizer", "a continuation"):
                return to_score(request, answer.prompt, self._tokenizer, self._limits)
        max_tokens = self._max_tokens(answer.prompt, params, clamps=request.clamp_max_tokens)
        seed = params.seed if params.seed is not None else secrets.randbits(63)
        grammar_states = self.constraints.grammar_states(
            request, answer, params, scope, cancellation
        )
        return [
            {"max_tokens": max_tokens, "seed": choice_seed(seed, index), "guide": grammar_state}
            for index, grammar_state in enumerate(grammar_states)
        ]

    def job(self, sequence: Sequence, channel: Channel, index: int) -> Job:
        """Return the loop's job for a sequence, which is one choice of a request."""
        params = sequence.params
        if sequence.task == "generate":
            shows = not params.skip_special_tokens
            with attributing(self._names, "tokenizer", "this prompt"):
                parser = self._tokenizer.reader(sequence.prompt, shows_special=shows)
            text = AnswerText(
                parser,
                params.stop,
                params.min_tokens,
                shows_stop=params.include_stop_str_in_output,
            )
            channel.answers.append(text)
            grounding = answer_grounding(sequence.prompt, self._tokenizer)
            return AnswerJob(sequence, channel, index, text, grounding)
        pooled = Pooled(self._pooling()) if sequence.task == "embed" else None
        return PrefillJob(sequence, channel, index, pooled)

    def _plan_prompt(self, prompt: Prompt) -> PromptPlan:
        """Return the engine's plan of a prompt, made here so that the loop need not wait for it."""
        with attributing(self._names, "engine", "this prompt"):
            return self._engine.read(prompt)

    def _max_tokens(self, prompt: Prompt, params: SamplingParams, *, clamps: bool) -> int:
        """Return how many tokens may be generated: fewer than requested only if ``clamps``.

        The engine limits prompt and answer together, and the operator may bound the answer.

        A client cannot tell an answer that ends before the requested length from one that its own
        limit ended, unless the answer states the limit that applied.
        """
        max_sequence, num_prompt = self._limits.max_sequence_tokens, len(prompt)
        room, bound = max_sequence - num_prompt, self._facts.bounds.max_output_tokens
        requested = params.max_tokens
        if requested is not None and bound is not None and requested > bound and not clamps:
            raise RequestError(f"max_tokens is over the limit of {bound}", param="max_tokens")
        if room < 1:
            raise PromptTooLong(max_sequence, f"your messages resulted in {num_prompt} tokens")
        if requested is None or clamps:
            return min(each for each in (requested, room, bound) if each is not None)
        if requested > room:
            raise PromptTooLong(
                max_sequence,
                f"you requested {num_prompt + requested} tokens ({num_prompt} in the messages, "
                f"{requested} in the completion)",
                param="max_tokens",
            )
        return requested


def _num_pixels(messages: Seq[Message]) -> int:
    """Return the number of pixels of all images, each as often as it occurs."""
    sizes = (image.source_size for image in images_of(messages))
    return sum(width * height for width, height in sizes)
