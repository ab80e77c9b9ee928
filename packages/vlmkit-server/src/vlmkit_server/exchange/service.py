"""The state that all routes share, such as the models and the admission control.

It is used in the event loop's thread.
"""

import logging
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeVar

from litestar.datastructures import Headers

from vlmkit.errors import RequestError
from vlmkit.interfaces.request_field import FieldFacts
from vlmkit.running.faults.attribution import UNKNOWN, ComponentNames
from vlmkit.settings.fetch import FetchSettings
from vlmkit_server.admission.admission import AdmissionControl
from vlmkit_server.auth.key_ring import key_ring
from vlmkit_server.exchange.monitors import Monitors
from vlmkit_server.exchange.offload import OffloadExecutor
from vlmkit_server.fleet.fleet import Fleet
from vlmkit_server.fleet.model_handle import State
from vlmkit_server.fleet.model_registry import ModelRegistry
from vlmkit_server.fleet.model_spec import Loader, ModelSpec, Servable, runner_of
from vlmkit_server.interfaces.monitor import Monitor
from vlmkit_server.logs.audit import AuditLog
from vlmkit_server.logs.line_file import BufferedLineFile
from vlmkit_server.settings.server import ServerSettings
from vlmkit_server.tools.toolbox import Toolbox
from vlmkit_server.wire.ignored import (
    HEADER,
    STRICT_HEADER,
    counter_names,
    header_value,
    unknown,
)

log = logging.getLogger(__name__)

KnownFields = Mapping[str, tuple[FieldFacts, ...]]
"""Fields that plugins add, by name: the facts of each component that accepts the field."""

T = TypeVar("T")


class Service:
    """The shared state of a server.

    Args:
        models: by served name: a runner, a model, a function that loads one, or a spec; None where
            other code adds the runner later.
        settings: the server's settings.
        toolbox: the tools that the server runs; none when None.
        monitors: the monitors, each by its name.
        request_fields: fields that plugins add to requests and that are known before models are
            loaded; those of loaded models are added.
        component_names: names the component that provides each monitor.
        fetch: whether images named by URL are fetched; none are when None.

    Raises:
        ConfigError: two models share a name, they exceed the memory budget, or the key file or
            another file that the settings name cannot be used.
    """

    def __init__(
        self,
        models: Mapping[str, ModelSpec | Servable | Loader | None],
        settings: ServerSettings,
        toolbox: Toolbox | None = None,
        monitors: Mapping[str, Monitor] = MappingProxyType({}),
        request_fields: KnownFields = MappingProxyType({}),
        component_names: ComponentNames = UNKNOWN,
        fetch: FetchSettings | None = None,
    ) -> None:
        self.request_fields = dict(request_fields)
        specs = {name: _spec(given) for name, given in models.items()}
        self.registry = ModelRegistry(specs, settings.fleet)
        self.models = self.registry.models
        self.fleet = Fleet(self.registry, settings.fleet)
        self.audit = AuditLog(settings.audit_log)
        for model in self.models.values():
            model.on_state = self._log_state
        for name, given in models.items():
            if isinstance(given, Servable):
                self.fleet.add(self.models[name], runner_of(given))
                for field, facts in runner_of(given).facts.request_fields.items():
                    known = self.request_fields.get(field, ())
                    if facts not in known:
                        self.request_fields[field] = (*known, facts)
        self.settings = settings
        self.fetch = fetch or FetchSettings()
        self.keys = key_ring(settings)
        self.access_log = (
            BufferedLineFile(settings.access_log, "server.access_log")
            if settings.access_log
            else None
        )
        self.toolbox = toolbox or Toolbox()
        self.monitors = Monitors(monitors, component_names)
        self.num_ignored: Counter[str] = Counter()  # requests, by the ignored field
        self.num_unenforced = 0  # requests with schema keywords that are not enforced
        self.admission = AdmissionControl(settings, self.fleet)
        self.offload = OffloadExecutor()

    def count_unenforced(self) -> None:
        """Count a request with schema keywords that are not enforced."""
        self.num_unenforced += 1

    # Requests.

    def name(self, given: str | None) -> str:
        """Return the name of the requested model, where a request may leave it out.

        Raises:
            RequestError: several models are served, and none is named.
        """
        if given is None and len(self.models) != 1:
            raise RequestError("model must be given: several are served", param="model")
        return next(iter(self.models)) if given is None else given

    def ignore(
        self, names: frozenset[str], headers: Headers, *, besides: frozenset[str] = frozenset()
    ) -> dict[str, str]:
        """Count fields without effect, and return the header that reports them, if any.

        Args:
            names: the fields' names; at least one.
            headers: the request's headers.
            besides: fields that were reported before, and are reported again.

        Raises:
            RequestError: the client or the operator forbids ignoring them.
        """
        policy = self.settings.unknown_fields
        if policy == "refuse" or headers.get(STRICT_HEADER) == "1":
            raise unknown(names)
        self.num_ignored.update(counter_names(names))
        return {HEADER: header_value(names | besides)} if policy == "report" else {}

    # Logs.

    def reopen_logs(self) -> None:
        """Open the log files by name again, after a log rotation moved them away."""
        self.audit.reopen()
        if self.access_log is not None:
            self.access_log.reopen()

    def _log_state(self, name: str, state: State) -> None:
        """Write to the audit log that a model is ready, unloaded or failed."""
        if state in ("ready", "unloaded", "failed"):
            self.audit.note("model", model=name, state=state)

    def close_logs(self) -> None:
        """Write what is left and close the logs; a second call does nothing."""
        self.audit.close()
        if self.access_log is not None:
            self.access_log.close()


def _spec(given: ModelSpec | Servable | Loader | None) -> ModelSpec:
    if isinstance(given, ModelSpec):
        return given
    return ModelSpec() if given is None or isinstance(given, Servable) else ModelSpec(load=given)
