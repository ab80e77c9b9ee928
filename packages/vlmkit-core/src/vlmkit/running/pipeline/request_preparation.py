"""From a request to sequences: parameters checked, a prompt made and read, a sequence a choice.

Runs in the thread of whoever asks, or in a worker; nobody's answer waits for it. Knows no queue and
no stream.
"""

import hashlib
import itertools
import secrets
from collections.abc import Callable, Mapping, Sequence as Seq
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from vlmkit.checkpoints.pooling import Pooled, Pooling
from vlmkit.errors import ConstraintError, PromptTooLong, RequestError
from vlmkit.interfaces.cancellation import Cancellation
from vlmkit.interfaces.engine import Engine
from vlmkit.interfaces.media_encoder import MediaEncoder
from vlmkit.interfaces.prompt import Prompt, PromptPlan
from vlmkit.interfaces.request_field import RequestField
from vlmkit.interfaces.runner import RunnerFacts
from vlmkit.interfaces.sequence import Sequence
from vlmkit.interfaces.tokenizer import Tokenizer
from vlmkit.running.constraints.compiled import Constraints, MakeCompiler
from vlmkit.running.constraints.sandbox.worker import ConstraintWorker
from vlmkit.running.constraints.thinking_budget import thinking_budget
from vlmkit.running.constraints.token_rules import (
    AllowedTokens,
    BadWords,
    Rule,
    RuledGrammarState,
    spellings,
)
from vlmkit.running.constraints.tool_calls import AnswerPlan, answer_plan, without_compiler
from vlmkit.running.engine_loop.answer_text import AnswerText
from vlmkit.running.engine_loop.channel import Channel
from vlmkit.running.engine_loop.grounding import answer_grounding, check_grounding
from vlmkit.running.engine_loop.job import AnswerJob, Job, ReadingJob
from vlmkit.running.faults.attribution import UNKNOWN, ComponentNames, attributing
from vlmkit.running.pipeline.embed_and_score import check_task, to_embed, to_score
from vlmkit.running.prompting.parameters import checked_params, with_min_length
from vlmkit.running.prompting.prompt_builder import PromptBuilder
from vlmkit.running.prompting.request_fields import checked_fields
from vlmkit.running.sampling.dry_breakers import SequenceBreakers
from vlmkit.running.sampling.random_numbers import choice_seed
from vlmkit.running.scheduling.decode_memory import DecodeLease
from vlmkit.types.constraint import Constraint
from vlmkit.types.message import image_parts_of
from vlmkit.types.request import Request
from vlmkit.types.sampling import SamplingParams
from vlmkit.types.stage import ImageTimings


class PreparedRequest(NamedTuple):
    """What a request comes to.

    Attributes:
        params: its own, or the model's.
        prompt: what every choice starts from.
        sequences: one for each choice.
        pages: for each image of the prompt the page of a document that it is, or None.
        images: where the time of each image went, by its place among the prompt's media.
        sent: which of the images and files that were sent each image is of, by that place.
    """

    params: SamplingParams
    prompt: Prompt
    sequences: list[Sequence]
    pages: Seq[int | None]
    images: Mapping[int, ImageTimings]
    sent: Mapping[int, int]


class RequestPreparation:
    """Makes sequences of requests for one model.

    Args:
        tokenizer: reads answers.
        prompts: makes prompts.
        engine: reads them.
        encoder: None for a model of texts.
        facts: the model's name, defaults and bounds.
        pooling: returns how hidden states become a vector.
        constraint: makes what compiles constraints; None where nothing can.
        constraint_worker: tries constraints first; None compiles them at once.
        request_fields: fields that plugins added to requests, by name.
        component_names: who made all of these.
    """

    def __init__(  # noqa: PLR0913 - one for each kind of component
        self,
        *,
        tokenizer: Tokenizer,
        prompts: PromptBuilder,
        engine: Engine,
        encoder: MediaEncoder | None,
        facts: RunnerFacts,
        pooling: Callable[[], Pooling],
        constraint: MakeCompiler | None,
        constraint_worker: ConstraintWorker | None,
        request_fields: Mapping[str, RequestField[Any]],
        component_names: ComponentNames = UNKNOWN,
    ) -> None:
        self._request_fields = request_fields
        self._component_names = component_names
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._engine = engine
        self._facts = facts
        self._limits = facts.limits
        self._encoder = encoder
        self._pooling = pooling
        # Some checkpoints name tokens that the model's output has no column for.
        self._banned_ids = tuple(sorted(filter(self._is_in_vocabulary, tokenizer.banned_ids)))
        self._eos_ids = frozenset(filter(self._is_in_vocabulary, tokenizer.eos_ids))
        self._breakers = SequenceBreakers(tokenizer, self._limits.vocab_size)
        self._constraints: Constraints | None = None
        if constraint is not None:
            self._constraints = Constraints(
                constraint,
                tokenizer,
                vocab_size=self._limits.vocab_size,
                eos_ids=self._eos_ids,
                banned_ids=self._banned_ids,
                max_bytes=facts.bounds.constraint_cache_bytes,
                worker=constraint_worker,
                component_names=component_names,
            )
        self._ids = itertools.count()

    def prepare(self) -> None:
        """Make now what the first constraint would wait for, if any can be asked for.

        Raises:
            VlmkitError: it could not be made.
        """
        if self._constraints is not None:
            self._constraints.prepare()

    def read(self, request: Request, place: DecodeLease) -> PreparedRequest:
        """Return what a request comes to.

        Args:
            request: what is asked.
            place: its room for images.

        Raises:
            RequestError: it is wrong or too long.
            OutOfMemory: this machine has no room for its prompt now.
        """
        check_task(request, self._limits)
        if request.options.light:
            raise RequestError("a light prompt has nothing that could be computed", param="light")
        params = checked_params(request, self._facts, self._tokenizer)
        fields = checked_fields(request.fields, self._request_fields) if request.fields else {}
        made = self._prompts.made(request, place)
        prompt = made.prompt
        if request.places:
            check_grounding(prompt)
        else:
            prompt = replace(prompt, place_format=None)
        asked = answer_plan(request, prompt, holds=self._constraints is not None)
        params = with_min_length(params, len(asked.prompt))
        sequences = self._sequences(request, asked, params, fields, place.cancellation)
        if len(sequences) != params.n:
            params = msgspec.structs.replace(params, n=len(sequences))
        pages = tuple(part.page for part in image_parts_of(made.messages))
        timings, sent = dict(made.image_timings()), made.sent_media()
        return PreparedRequest(params, asked.prompt, sequences, pages, timings, sent)

    def _is_in_vocabulary(self, token_id: int) -> bool:
        return 0 <= token_id < self._limits.vocab_size

    def _sequences(
        self,
        request: Request,
        asked: AnswerPlan,
        params: SamplingParams,
        fields: Mapping[str, msgspec.Struct],
        cancellation: Cancellation,
    ) -> list[Sequence]:
        prompt = asked.prompt
        scope = self._scope(request, fields)
        choices = self._choices(request, asked, params, scope, cancellation)
        banned_ids = tuple(sorted(asked.banned_ids.union(self._banned_ids)))
        eos_ids = self._eos_ids.union(params.stop_token_ids)
        breakers = self._dry_breakers(params)
        plans: dict[int, PromptPlan] = {}  # by length: prompts of one request begin alike
        made = []
        for own in choices:
            begun = own.pop("prompt", prompt)
            if len(begun) not in plans:
                plans[len(begun)] = self._read(begun)
            made.append(
                Sequence(
                    id=f"{next(self._ids)}",
                    prompt=begun,
                    params=params,
                    eos_ids=eos_ids,
                    banned_ids=banned_ids,
                    dry_breakers=breakers,
                    scope=scope,
                    priority=request.priority,
                    plan=plans[len(begun)],
                    fields=fields,
                    **own,
                )
            )
        return made

    def _dry_breakers(self, params: SamplingParams) -> Mapping[int, Seq[tuple[int, ...]]]:
        if not params.dry_multiplier or "dry_multiplier" in self._facts.sampler.ignores:
            return {}
        with attributing(self._component_names, "tokenizer", "dry_sequence_breakers"):
            return self._breakers.of(params.dry_sequence_breakers)

    def _choices(
        self,
        request: Request,
        asked: AnswerPlan,
        params: SamplingParams,
        scope: bytes,
        cancellation: Cancellation,
    ) -> list[dict[str, Any]]:
        """Return what sets each sequence of a request apart."""
        prompt = asked.prompt
        if request.task == "embed":
            return [to_embed(prompt, self._pooling(), self._limits)]
        if request.task == "score":
            with attributing(self._component_names, "tokenizer", "a continuation"):
                return to_score(request, prompt, self._tokenizer, self._limits)
        max_tokens = self._max_tokens(prompt, params, clamps=request.clamp_max_tokens)
        seed = params.seed if params.seed is not None else secrets.randbits(63)
        self._check_constraint(asked.constraint, params)
        guides = self._guides(request, asked, params, scope, cancellation)
        return [
            {"max_tokens": max_tokens, "seed": choice_seed(seed, index), "guide": guide}
            for index, guide in enumerate(guides)
        ]

    def _guides(
        self,
        request: Request,
        asked: AnswerPlan,
        params: SamplingParams,
        scope: bytes,
        cancellation: Cancellation,
    ) -> Seq[Any]:
        """Return what keeps each choice within a constraint and rules; None where nothing does."""
        guides: Seq[Any] = [None] * params.n
        if asked.constraint is not None and self._constraints is not None:
            account = request.account or request.tenant
            guides = self._constraints.guides(
                asked.constraint, params.n, scope, account, cancellation
            )
        rules = self._rules(params, asked.banned_ids.union(self._banned_ids))
        with attributing(self._component_names, "tokenizer", "the marks of reasoning"):
            budget = thinking_budget(params.thinking_token_budget, asked.prompt, self._tokenizer)
        if not rules and budget is None:
            return guides
        return [
            RuledGrammarState(
                [*rules, *([budget()] if budget else [])], self._limits.vocab_size, guide
            )
            for guide in guides
        ]

    def _rules(self, params: SamplingParams, banned_ids: frozenset[int]) -> list[Rule]:
        """Return the rules that a request asks for.

        Raises:
            RequestError: one of them makes no sense, or leaves nothing to be chosen.
        """
        rules: list[Rule] = []
        if params.allowed_token_ids:
            banned = banned_ids.union(params.suppress_tokens)
            if params.min_tokens:
                banned = banned.union(self._eos_ids, params.stop_token_ids)
            if banned.issuperset(params.allowed_token_ids):
                raise RequestError(
                    "none of allowed_token_ids may be chosen by this model at first",
                    param="allowed_token_ids",
                )
            rules.append(AllowedTokens(params.allowed_token_ids, self._limits.vocab_size))
        if params.bad_words:
            with attributing(self._component_names, "tokenizer", "bad_words"):
                words = spellings(params.bad_words, self._tokenizer.encode)
            rules.append(BadWords(words))
        return rules

    def _check_constraint(self, constraint: Constraint | None, params: SamplingParams) -> None:
        """Refuse a constraint that nothing here keeps to, or that contradicts the parameters.

        Raises:
            ConstraintError: it is one.
        """
        if constraint is None:
            return
        if self._constraints is None:
            raise without_compiler(
                "no plugin is in use here that keeps an answer within a constraint"
            )
        if params.ignore_eos:
            raise ConstraintError("ignore_eos and a constraint exclude each other")

    def job(self, sequence: Sequence, channel: Channel, index: int) -> Job:
        """Return the loop's handle of a sequence, which is one choice of a request."""
        params = sequence.params
        if sequence.task == "generate":
            shows = not params.skip_special_tokens
            with attributing(self._component_names, "tokenizer", "this prompt"):
                reader = self._tokenizer.reader(sequence.prompt, shows_special=shows)
            text = AnswerText(
                reader,
                params.stop,
                params.min_tokens,
                shows_stop=params.include_stop_str_in_output,
            )
            channel.answers.append(text)
            places = answer_grounding(sequence.prompt, self._tokenizer)
            return AnswerJob(sequence, channel, index, text, places)
        pooled = Pooled(self._pooling()) if sequence.task == "embed" else None
        return ReadingJob(sequence, channel, index, pooled)

    def _read(self, prompt: Prompt) -> PromptPlan:
        """Let the engine look at a prompt here, where nobody's answer waits for it."""
        with attributing(self._component_names, "engine", "this prompt"):
            return self._engine.read(prompt)

    def _scope(self, request: Request, fields: Mapping[str, msgspec.Struct]) -> bytes:
        """Return what keeps a client's part of all caches apart, and one encoder's features."""
        identity = "" if self._encoder is None else self._encoder.identity
        names = (request.tenant, identity, request.cache_salt)
        parts = [name.encode(errors="surrogatepass") for name in names]
        for name in sorted(fields):
            if self._request_fields[name].changes == "states":
                parts += [name.encode(), msgspec.json.encode(fields[name], order="deterministic")]
        return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).digest()

    def _max_tokens(self, prompt: Prompt, params: SamplingParams, *, clamps: bool) -> int:
        """Return how many tokens may be generated: fewer than were asked for only if it clamps.

        An answer that ends before the length that was asked for cannot be distinguished from one
        that the client's own limit ended, unless the client is told the limit that applied.
        """
        most, num_prompt = self._limits.max_sequence_tokens, len(prompt)
        room, bound = most - num_prompt, self._facts.bounds.max_output_tokens
        asked = params.max_tokens
        if asked is not None and bound is not None and asked > bound and not clamps:
            raise RequestError(f"max_tokens is over the limit of {bound}", param="max_tokens")
        if room < 1:
            raise PromptTooLong(most, f"your messages resulted in {num_prompt} tokens")
        if asked is None or clamps:
            return min(each for each in (asked, room, bound) if each is not None)
        if asked > room:
            raise PromptTooLong(
                most,
                f"you requested {num_prompt + asked} tokens ({num_prompt} in the messages, {asked} "
                "in the completion)",
                param="max_tokens",
            )
        return asked
