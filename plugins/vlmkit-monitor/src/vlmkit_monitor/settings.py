"""What an operator can set about monitors."""

import msgspec


class PrometheusSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What ``/metrics`` shows.

    Attributes:
        vllm_names: tell what vLLM's dashboards ask for under its names, too.
    """

    vllm_names: bool = True


class OtlpSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is sent to a collector; where to, and how much of it, the ``OTEL_`` variables say.

    Attributes:
        traces: send a trace of each request that is sampled.
        metrics: send the numbers that OpenTelemetry's conventions for model servers name.
    """

    traces: bool = True
    metrics: bool = True
