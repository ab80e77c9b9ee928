"""One named way to get a component: how it is built, and when it can be used.

Which of several is taken is the registry's business.
"""

import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from vlmkit.interfaces.memory_plan import MemoryPlan, PlannedLoad
from vlmkit.interfaces.request_field import RequestField
from vlmkit.kit.checkpoint import Checkpoint
from vlmkit.kit.model_uri import SCHEME, scheme_of
from vlmkit.kit.objection import Objection
from vlmkit.kit.one_line import one_line
from vlmkit.kit.single_file import SUFFIX
from vlmkit.kit.traces import trace_of
from vlmkit.plugins.build_context import BuildContext, KindProviders

T = TypeVar("T")
log = logging.getLogger(__name__)


def can_run() -> str | None:
    """Object to no machine."""
    return None


def can_serve(_: object) -> str | None:
    """Object to nothing that is to be served."""
    return None


def _unstated(name: str) -> Objection:
    return Objection(
        "it does not say which models it serves, so it is used only where it is named",
        hint=f'use = "{name}" names it; its author can state cannot_serve',
    )


def takes_providers(cannot_serve: Callable[..., object]) -> bool:
    """Return whether a check of models has a parameter ``providers``, by its signature."""
    try:
        return "providers" in inspect.signature(cannot_serve).parameters
    except (TypeError, ValueError):  # not a function, or one in C
        return False


CALLS: Mapping[str, tuple[str, ...]] = {
    "build": ("context",),
    "why_not": (),
    "cannot_serve": ("checkpoint",),
    "examine": ("context",),
    "plan": ("context", "load"),
    "keep": ("context", "folder"),
    "list_models": (),
    "previews": ("context",),
    "remove": ("context",),
    "priority": ("checkpoint",),
}
"""What each function of a provider is called with."""


def misfit(name: str, function: Callable[..., object]) -> str | None:
    """Return why a function of a provider cannot be called as ``CALLS`` says, by its signature."""
    has_providers = name == "cannot_serve" and takes_providers(function)
    options = {"providers": None} if has_providers else {}
    try:
        inspect.signature(function).bind(*CALLS[name], **options)
    except TypeError as error:
        return str(error)
    except ValueError:  # one in C, without a signature
        return None
    return None


def _is_priority(value: object) -> bool:
    return isinstance(value, int) or callable(value)


def _is_function_or_none(value: object) -> bool:
    return value is None or callable(value)


def _are_schemes(value: object) -> bool:
    return isinstance(value, tuple) and all(
        isinstance(each, str) and SCHEME.fullmatch(each) for each in value
    )


def _are_suffixes(value: object) -> bool:
    return isinstance(value, tuple) and all(
        isinstance(each, str) and SUFFIX.fullmatch(each) for each in value
    )


def _is_struct_or_none(value: object) -> bool:
    return value is None or (isinstance(value, type) and issubclass(value, msgspec.Struct))


EXPECTED: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("build", callable, "a function"),
    ("why_not", callable, "a function"),
    ("cannot_serve", callable, "a function"),
    ("examine", _is_function_or_none, "a function"),
    ("plan", _is_function_or_none, "a function"),
    ("keep", _is_function_or_none, "a function"),
    ("list_models", _is_function_or_none, "a function"),
    ("previews", _is_function_or_none, "a function"),
    ("remove", _is_function_or_none, "a function"),
    ("schemes", _are_schemes, "a tuple of schemes in lower case, such as ('store',),"),
    ("suffixes", _are_suffixes, "a tuple of suffixes in lower case, such as ('.gguf',),"),
    ("request_fields", lambda value: isinstance(value, tuple), "a tuple of RequestField"),
    ("settings", _is_struct_or_none, "a subclass of msgspec.Struct"),
    ("priority", _is_priority, "a whole number or a function"),
    ("runner", lambda value: isinstance(value, str), "the name of a runner"),
    ("description", lambda value: isinstance(value, str), "a text"),
)


@dataclass(frozen=True, slots=True)
class Provider(Generic[T]):
    """One named way to get a component.

    Attributes:
        name: what a config selects it by.
        build: makes the component; may import heavy libraries and take long.
        why_not: says in one sentence why it cannot run on this machine; None when it can.
            Must not import what it asks about.
        cannot_serve: the same for one model: gets the Checkpoint (for model sources, and for
            runners that own its scheme: the reference) and looks at small files only. Either may
            return a :class:`vlmkit.kit.objection.Objection`, which has a hint. What its absence
            means is the kind's: see :attr:`vlmkit.plugins.kinds.Kind.serves`. With a second
            parameter ``providers``, it also gets the providers of the kinds that its plugin owns,
            as :meth:`.BuildContext.providers` returns them.
        settings: struct of the provider's own settings; None accepts no settings.
        priority: ``auto`` prefers higher numbers; those of vlmkit itself have 10, so that a plugin
            takes over only if it says more. A function is asked for each model: it gets what
            ``cannot_serve`` gets.
        description: one line for ``vlmkit plugins --json``.
        examine: says in a few words how it would run a model, or raises what ``build`` would; for
            ``vlmkit doctor``. May import heavy libraries; loads no weights.
        plan: returns how much memory the component would take for a load; for ``vlmkit plan``. It
            gets what ``build`` gets, and may import heavy libraries; loads no weights.
        keep: writes what ``build`` finds out of a model where later builds find it: into a folder
            that is being made, or for None into the user's cache folder. Says why it cannot.
        list_models: for sources of many models: the references of those that are on this disk.
        previews: for sources of many models: yields a model's folder while it fills, each time as a
            checkpoint that is a preview: first with what says how the model is built, at last with
            all but its weights. Yields nothing for a model that is on this disk, and removes
            the folder when it is closed.
        remove: for sources of many models: deletes a model, or the revision of it that is asked
            for, from this disk; returns how many bytes that freed.
        schemes: for sources of many models, and for runners: the schemes of the URIs that are
            theirs alone.
        suffixes: for sources of models that are single files: the suffixes of the files that it
            alone reads. Its ``build`` and its ``cannot_serve`` get a checkpoint with ``file``.
        request_fields: fields that it adds to requests: of an engine, a scheduler, a sampler or a
            proposer, which see sequences.
        runner: for engines: the name of the runner that answers for its models unless the config
            names one, such as ``subprocess`` for a library that may end its process.
        plugin: the distribution or file that offers it; filled in by the loader.
        is_by_name: whether it is used only if it is named. It does not state what it can serve, and
            no provider of its kind can serve everything.
        asks_providers: whether ``cannot_serve`` has the parameter ``providers``.
        providers: what it then gets; set by the registry.
    """

    name: str
    build: Callable[[BuildContext], T]
    why_not: Callable[[], str | None] = can_run
    cannot_serve: Callable[..., str | None] = can_serve
    settings: type[msgspec.Struct] | None = None
    priority: int | Callable[[Any], int] = 0
    description: str = ""
    examine: Callable[[BuildContext], str] | None = None
    plan: Callable[[BuildContext, PlannedLoad], MemoryPlan] | None = None
    keep: Callable[[BuildContext, Path | None], str | None] | None = None
    list_models: Callable[[], Iterable[str]] | None = None
    previews: Callable[[BuildContext], Iterator[Checkpoint]] | None = None
    remove: Callable[[BuildContext], int] | None = None
    schemes: tuple[str, ...] = ()
    suffixes: tuple[str, ...] = ()
    request_fields: tuple[RequestField[Any], ...] = ()
    runner: str = ""
    plugin: str = "vlmkit"
    is_by_name: bool = False
    asks_providers: bool = False
    providers: KindProviders = field(default_factory=KindProviders, repr=False, compare=False)

    @property
    def is_packaged(self) -> bool:
        """Whether it has one model, which has its name: of providers of models."""
        return self.list_models is None and not self.schemes and not self.suffixes

    def objection(self, *subject: object, is_named: bool = False) -> str | None:
        """Say why it cannot run here, or cannot serve the subject if one is given.

        A check that raises is an objection too: a broken plugin must not stand in the way of
        the others.

        Args:
            *subject: what is to be served.
            is_named: whether somebody asks for this one by its name.
        """
        try:
            said: object = self.why_not()
            if not said and subject and self.is_by_name and not is_named:
                return _unstated(self.name)
            said = said or (self.refusal(*subject) if subject else None)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # it may end the process, or panic in another language
            who, subjects = (self.plugin, self.name), (s for s in subject if isinstance(s, str))
            if any(map(scheme_of, subjects)):  # its text may repeat a password
                log.warning("%s: the check of %r failed\n%s", *who, trace_of(error))
            else:
                log.warning("%s: the check of %r failed", *who, exc_info=error)
            return f"its own check failed with {one_line(type(error).__name__)}"
        if said is None or said is False:
            return None
        if isinstance(said, str):
            return said or None
        return f"its own check returned a value of type {type(said).__name__!r}, not a sentence"

    def refusal(self, subject: object) -> str | None:
        """Return what ``cannot_serve`` says about a subject; raise what it raises."""
        if self.asks_providers:
            return self.cannot_serve(subject, providers=self.providers)
        return self.cannot_serve(subject)

    def priority_for(self, subject: object) -> int:
        """Return how much ``auto`` prefers it for the subject; 0 where its function fails."""
        if isinstance(self.priority, int):
            return self.priority
        try:
            priority: object = self.priority(subject)
            if isinstance(priority, int):
                return priority
        except (Exception, SystemExit) as error:
            log.warning("%s: the priority of %r failed", self.plugin, self.name, exc_info=error)
        else:
            log.warning("%s: the priority of %r is no whole number", self.plugin, self.name)
        return 0
