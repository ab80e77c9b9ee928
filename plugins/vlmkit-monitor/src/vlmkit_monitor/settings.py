"""The settings of the monitors."""

import msgspec


class PrometheusSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``/metrics``.

    Attributes:
        vllm_names: whether to add the metrics of vLLM's dashboards under their names.
    """

    vllm_names: bool = True


class OtlpSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is sent to a collector; the ``OTEL_`` variables set the target and the sampling.

    Attributes:
        traces: whether to send a trace of each sampled request.
        metrics: whether to send the metrics of OpenTelemetry's conventions for model servers.
    """

    traces: bool = True
    metrics: bool = True
