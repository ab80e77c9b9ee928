"""From a constraint to what keeps each answer within it: compiled once, and cached.

The compiler wants the bytes of each token, and may let no other thread run while it is made: it is
made when the first constraint is asked for, or before, by whoever must not stand still then. Runs
in the threads that read prompts; knows no request and no answer.
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
from vlmkit.running.constraints.relaxation import Compiled, compiled
from vlmkit.running.constraints.sandbox.worker import ConstraintWorker, SandboxBudget
from vlmkit.running.faults.attribution import UNKNOWN, ComponentNames
from vlmkit.running.faults.isolation import engine_error
from vlmkit.running.sampling.token_sets import words_of
from vlmkit.running.scheduling.eviction import EvictionPolicy
from vlmkit.types.constraint import Constraint, Lark

MakeCompiler = Callable[[Vocabulary], ConstraintCompiler]

ENTRY_BYTES = (
    2**20
)  # of a compiled constraint; what answers add to it while they follow it included
CHAR_BYTES = 64  # and of each of its characters
MAX_ENTRIES = 4096
MAX_CHECKED_CHARS = 2048  # a longer constraint takes milliseconds to check: its trial does it


class _Entry(NamedTuple):
    compiled: Compiled
    account: str
    num_bytes: int


class ConstraintCache:
    """Keeps compiled constraints within a bound of bytes, which tenants share fairly.

    Where there is no room, the least recently used constraint of the tenant that holds most is
    evicted. All methods may be called in any thread.

    Args:
        max_bytes: of all of them; 0 keeps none.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._holdings = EvictionPolicy(MAX_ENTRIES, max_bytes)
        self._entries: OrderedDict[tuple[bytes, Constraint], _Entry] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def num_bytes(self) -> int:
        """Memory that the cached constraints are counted with."""
        return self._holdings.num_bytes

    def get(self, scope: bytes, constraint: Constraint) -> Compiled | None:
        """Return what was compiled before in a scope, or None."""
        with self._lock:
            entry = self._entries.get((scope, constraint))
            if entry is None:
                return None
            self._entries.move_to_end((scope, constraint))
            return entry.compiled

    def put(
        self, scope: bytes, constraint: Constraint, made: Compiled, account: str, num_bytes: int
    ) -> None:
        """Keep a compiled constraint, unless it alone is over the bound."""
        if num_bytes > self._max_bytes:
            return
        with self._lock:
            if (scope, constraint) in self._entries:
                return
            while not self._holdings.has_room(1, num_bytes):
                self._evict(account, num_bytes)
            self._entries[scope, constraint] = _Entry(made, account, num_bytes)
            self._holdings.add(account, 1, num_bytes)

    def _evict(self, account: str, num_bytes: int) -> None:
        """Drop one constraint, of the first in the order of eviction that has any."""
        for holder in [*self._holdings.who_forgets(account, 1, num_bytes)]:
            key = next((k for k, entry in self._entries.items() if entry.account == holder), None)
            if key is not None:
                break
        else:
            key = next(iter(self._entries))
        entry = self._entries.pop(key)
        self._holdings.add(entry.account, -1, -entry.num_bytes)


class Constraints:
    """Compiles constraints for one model.

    Args:
        make: makes the compiler.
        tokenizer: knows the tokens.
        vocab_size: columns of the logits.
        eos_ids: tokens that end an answer.
        banned_ids: tokens that must never be chosen.
        max_bytes: memory for compiled constraints that may be asked for again.
        worker: tries constraints before they are compiled here; None compiles them at once.
        component_names: who made the compiler.
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
        self._silent = eos_ids.union(banned_ids)
        self._ends = words_of(eos_ids, vocab_size)
        self._free = self._ends
        self._compiler: ConstraintCompiler | None = None
        self._making = threading.Lock()
        self._token_bytes: Seq[bytes] = ()
        self._worker = worker
        self.cache = ConstraintCache(max_bytes)

    def prepare(self) -> None:
        """Make the compiler now; harmless when it is there.

        Raises:
            EngineError: what it is made of could not be had.
            PluginError: it could not be built.
        """
        try:
            self._ready_compiler()
        except VlmkitError:
            raise
        except Exception as error:  # a tokenizer may raise anything
            raise engine_error(
                "the compiler of constraints could not be made", error, repeats=True
            ) from error

    def guides(
        self,
        constraint: Constraint,
        num: int,
        scope: bytes = b"",
        account: str = "",
        cancellation: Cancellation | None = None,
    ) -> list[GrammarState]:
        """Return what keeps so many answers within a constraint, each by itself.

        Args:
            constraint: what answers must keep to.
            num: of the answers.
            scope: whose it is: no tenant learns from the time that it takes what others sent.
            account: the tenant that it is cached for.
            cancellation: of the request; kills a trial.

        Raises:
            ConstraintError: the constraint makes no sense, or is too large or too complex.
            RequestCancelled: the request was cancelled.
            EngineError: the compiler failed.
            PluginError: it could not be built.
        """
        try:
            made = self._compiled(constraint, scope, account, cancellation or Cancellation())
            free = self._free
            if isinstance(constraint, Lark) and constraint.tokens:
                named = (token_id for _, token_id in constraint.tokens)
                free = free | words_of(named, self._vocab_size)
            return [
                GrammarState(made.make, free, self._ends, made.unconstrained) for _ in range(num)
            ]
        except VlmkitError:
            raise
        except Exception as error:  # a compiler may raise anything
            who = self._component_names.of("constraint")
            raise engine_error(f"{who} could not be compiled", error, repeats=True) from error

    def _compiled(
        self, constraint: Constraint, scope: bytes, account: str, cancellation: Cancellation
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
                taken = self._worker.tried(
                    reduced, self._token_bytes, cancellation, budget, is_part=is_part
                )
                num_bytes = max(num_bytes, taken)

        def compile_whole(reduced: Constraint) -> MakeMatcher:
            try_one(reduced, is_part=False)
            return compiler.compile(reduced)

        def try_part(reduced: Constraint) -> None:
            try_one(reduced, is_part=True)
            if self._worker is None:
                compiler.compile(reduced)

        made = compiled(constraint, support, compile_whole, try_part)
        self.cache.put(scope, constraint, made, account, num_bytes)
        return made

    def _ready_compiler(self) -> ConstraintCompiler:
        with self._making:
            if self._compiler is None:
                self._compiler = self._new_compiler()
            return self._compiler

    def _new_compiler(self) -> ConstraintCompiler:
        token_bytes = [self._added_by(token_id) for token_id in range(self._vocab_size)]
        spoken = (token_id for token_id, added in enumerate(token_bytes) if added)
        self._free = words_of(spoken, self._vocab_size)
        self._token_bytes = token_bytes
        if self._worker is not None:
            self._worker.start(token_bytes)  # it builds its compiler while this process does
        return self._make(Vocabulary(token_bytes, self._tokenizer.encode))

    def _added_by(self, token_id: int) -> bytes:
        """Return what a token adds to an answer's text; special ones stand for words that do not.

        A space at the beginning of a text may be dropped, so it says nothing of a token.
        """
        if token_id in self._silent or token_id >= self._tokenizer.vocab_size:
            return b""
        added = self._tokenizer.token_bytes(token_id)
        is_heard = added.isspace() or self._tokenizer.decode([token_id])
        return added if is_heard else b""
