"""The hooks of vlmkit-monitor. Imports nothing heavy: the build functions do."""

import importlib.util

from vlmkit.kit.install_command import install_command
from vlmkit.kit.objection import Objection
from vlmkit.plugins.hookspecs import hookimpl
from vlmkit.plugins.registry import BuildContext, Registry
from vlmkit_monitor.settings import OtlpSettings, PrometheusSettings
from vlmkit_server.interfaces.monitor import Monitor

VLMKIT_API = (1, 0)


def _prometheus_objection() -> str | None:
    found = importlib.util.find_spec("prometheus_client")
    return None if found else "the package prometheus-client is not installed"


def _otlp_objection() -> str | None:
    try:
        found = importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http")
    except ModuleNotFoundError:
        found = None
    if found:
        return None
    return Objection(
        "the packages of OpenTelemetry are not installed",
        hint=install_command("vlmkit-monitor[otlp]"),
    )


def _can_serve(_: object) -> None:
    """Let ``auto`` select it: it sends nothing by itself."""


def _build_prometheus(context: BuildContext) -> Monitor:
    from vlmkit_monitor.prometheus import PrometheusMonitor

    return PrometheusMonitor(context.settings)


def _build_otlp(context: BuildContext) -> Monitor:
    from vlmkit_monitor.otlp import OtlpMonitor

    return OtlpMonitor(context.settings)


@hookimpl
def vlmkit_register_monitors(registry: Registry[Monitor]) -> None:
    """Register ``monitors.use = ["prometheus", "otlp"]``."""
    registry.add(
        "prometheus",
        _build_prometheus,
        why_not=_prometheus_objection,
        cannot_serve=_can_serve,
        settings=PrometheusSettings,
        description="numbers for Prometheus at /metrics",
    )
    registry.add(
        "otlp",
        _build_otlp,
        why_not=_otlp_objection,
        settings=OtlpSettings,
        description="traces and numbers for a collector of OpenTelemetry",
    )
