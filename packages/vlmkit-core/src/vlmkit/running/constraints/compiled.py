"""Compiles constraints once, caches them, and makes the grammar states of answers.

Building the compiler needs the bytes of every token, and may block all other threads. It is built
for the first constraint, or in advance by a server that must not stall then. The code runs in the
threads that prepare requests. It knows no request and no answer.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence as Seq
from typing import NamedTuple

from vlmkit.errors import VlmkitError
from vlmkit.interfaces.cancellation import Cancellation
from vlmkit.interfaces.constraint import (
    ConstraintCompiler,
    DeclaresSchemaSupport,
    MakeMatcher,
    SchemaSupport,
    Vocabulary,
)
from vlmkit.interfaces.tokenizer import Tokenizer
from vlmkit.running.constraints.grammar_state import GrammarState
from vlmkit.running.constraints.limits import check_limits, num_chars_of
from vlmkit.running.constraints.relaxation import Compiled, compile_relaxed
from vlmkit.running.constraints.sandbox.worker import ConstraintWorker, SandboxBudget
from vlmkit.running.faults.attribution import UNKNOWN, ComponentNames
from vlmkit.running.faults.isolation import engine_error
from vlmkit.running.sampling.token_sets import words_of
from vlmkit.running.scheduling.eviction import EvictionPolicy
from vlmkit.types.constraint import Constraint, Lark

MakeCompiler = Callable[[Vocabulary], ConstraintCompiler]

ENTRY_BYTES = 2**20  # estimate for a compiled constraint, with what its answers add to it
CHAR_BYTES = 64  # and for each of its characters
MAX_ENTRIES = 4096
MAX_CHECKED_CHARS = 2048  # a longer one takes milliseconds to check, and is checked in its trial


class _Entry(NamedTuple):
    compiled: Compiled
    tenant: str
    num_bytes: int


class ConstraintCache:
    """A cache of compiled constraints, whose memory tenants share fairly. Thread-safe.

    When it is full, it evicts the least recently used constraint of the tenant that holds most.

    Args:
        max_bytes: memory of all constraints; 0 keeps none.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._eviction = EvictionPolicy(MAX_ENTRIES, max_bytes)
        self._entries: OrderedDict[tuple[bytes, Constraint], _Entry] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def num_bytes(self) -> int:
        """Estimated memory of the cached constraints."""
        return self._eviction.num_bytes

    def get(self, scope: bytes, constraint: Constraint) -> Compiled | None:
        """Return a constraint that was compiled in the same scope, or None."""
        with self._lock:
            entry = self._entries.get((scope, constraint))
            if entry is None:
                return None
            self._entries.move_to_end((scope, constraint))
            return entry.compiled

    def put(
        self, scope: bytes, constraint: Constraint, made: Compiled, tenant: str, num_bytes: int
    ) -> None:
        """Cache a compiled constraint, unless it alone exceeds the bound."""
        if num_bytes > self._max_bytes:
            return
        with self._lock:
            if (scope, constraint) in self._entries:
                return
            while not self._eviction.fits(1, num_bytes):
                self._evict(tenant, num_bytes)
            self._entries[scope, constraint] = _Entry(made, tenant, num_bytes)
            self._eviction.add(tenant, 1, num_bytes)

    def _evict(self, tenant: str, num_bytes: int) -> None:
        """Evict one constraint of the first tenant in the order of eviction that has any."""
        for holder in [*self._eviction.tenants_to_evict(tenant, 1, num_bytes)]:
            key = next((k for k, entry in self._entries.items() if entry.tenant == holder), None)
            if key is not None:
                break
        else:
            key = next(iter(self._entries))
        entry = self._entries.pop(key)
        self._eviction.add(entry.tenant, -1, -entry.num_bytes)


class Constraints:
    """Compiles constraints for one model.

    Args:
        make: builds the compiler.
        tokenizer: the tokenizer of the model.
        vocab_size: columns of the logits.
        eos_ids: tokens that end an answer.
        banned_ids: tokens that must never be chosen.
        max_bytes: memory of the cache of compiled constraints.
        worker: tries constraints before they are compiled here; without it, they are not tried.
        component_names: the name of the compiler's provider.
    """

    def __init__(
        self,
        make: MakeCompiler,
        tokenizer: Tokenizer,
        *,
        vocab_size: int,
        eos_ids: frozenset[int],
        banned_ids: Seq[int],
        max_bytes: int,
        worker: ConstraintWorker | None = None,
        component_names: ComponentNames = UNKNOWN,
    ) -> None:
        self._make = make
        self._component_names = component_names
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._textless_ids = eos_ids.union(banned_ids)
        self._ends = words_of(eos_ids, vocab_size)
        self._allowed = self._ends
        self._compiler: ConstraintCompiler | None = None
        self._lock = threading.Lock()
        self._token_bytes: Seq[bytes] = ()
        self._worker = worker
        self.cache = ConstraintCache(max_bytes)

    def prepare(self) -> None:
        """Build the compiler now; harmless when it is there.

        Raises:
            EngineError: the tokenizer or the compiler failed.
            PluginError: the compiler cannot be built.
        """
        try:
            self._ready_compiler()
        except VlmkitError:
            raise
        except Exception as error:  # a tokenizer may raise anything
            raise engine_error(
                "the constraint compiler could not be built", error, may_quote_input=True
            ) from error

    def grammar_states(
        self,
        constraint: Constraint,
        num: int,
        scope: bytes = b"",
        tenant: str = "",
        cancellation: Cancellation | None = None,
    ) -> list[GrammarState]:
        """Return the grammar states that keep some answers within a constraint.

        Args:
            constraint: the constraint of the answers.
            num: how many answers there are.
            scope: separates cache entries, so that timing reveals nothing of other tenants.
            tenant: the tenant whose share of the cache is used.
            cancellation: of the request; it kills a trial.

        Raises:
            ConstraintError: the constraint is invalid, too large or too complex.
            RequestCancelled: the request was cancelled.
            EngineError: the compiler failed.
            PluginError: the compiler cannot be built.
        """
        try:
            made = self._compiled(constraint, scope, tenant, cancellation or Cancellation())
            allowed = self._allowed
            if isinstance(constraint, Lark) and constraint.tokens:
                named = (token_id for _, token_id in constraint.tokens)
                allowed = allowed | words_of(named, self._vocab_size)
            return [
                GrammarState(made.make, allowed, self._ends, made.unenforced) for _ in range(num)
            ]
        except VlmkitError:
            raise
        except Exception as error:  # a compiler may raise anything
            name = self._component_names.of("constraint")
            raise engine_error(
                f"{name} could not be compiled", error, may_quote_input=True
            ) from error

    def _compiled(
        self, constraint: Constraint, scope: bytes, tenant: str, cancellation: Cancellation
    ) -> Compiled:
        if (made := self.cache.get(scope, constraint)) is not None:
            return made
        compiler = self._ready_compiler()
        support = SchemaSupport()
        if isinstance(compiler, DeclaresSchemaSupport):
            support = compiler.schema_support
        num_bytes = ENTRY_BYTES + CHAR_BYTES * num_chars_of(constraint)
        budget = SandboxBudget()

        def try_one(reduced: Constraint, *, is_part: bool) -> None:
            nonlocal num_bytes
            if self._worker is None or num_chars_of(reduced) <= MAX_CHECKED_CHARS:
                check_limits(reduced)
            if self._worker is not None:
                used_bytes = self._worker.check(
                    reduced, self._token_bytes, cancellation, budget, is_part=is_part
                )
                num_bytes = max(num_bytes, used_bytes)

        def compile_whole(reduced: Constraint) -> MakeMatcher:
            try_one(reduced, is_part=False)
            return compiler.compile(reduced)

        def try_part(reduced: Constraint) -> None:
            try_one(reduced, is_part=True)
            if self._worker is None:
                compiler.compile(reduced)

        made = compile_relaxed(constraint, support, compile_whole, try_part)
        self.cache.put(scope, constraint, made, tenant, num_bytes)
        return made

    def _ready_compiler(self) -> ConstraintCompiler:
        with self._lock:
            if self._compiler is None:
                self._compiler = self._new_compiler()
            return self._compiler

    def _new_compiler(self) -> ConstraintCompiler:
        token_bytes = [self._added_bytes(token_id) for token_id in range(self._vocab_size)]
        with_text = (token_id for token_id, added in enumerate(token_bytes) if added)
        self._allowed = words_of(with_text, self._vocab_size)
        self._token_bytes = token_bytes
        if self._worker is not None:
            self._worker.start(token_bytes)  # it builds its compiler while this process does
        return self._make(Vocabulary(token_bytes, self._tokenizer.encode))

    def _added_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token adds to an answer's text; special tokens add none.

        A tokenizer may drop white space at the start of a text, so a white token counts as text.
        """
        if token_id in self._textless_ids or token_id >= self._tokenizer.vocab_size:
            return b""
        added = self._tokenizer.token_bytes(token_id)
        has_text = added.isspace() or self._tokenizer.decode([token_id])
        return added if has_text else b""
