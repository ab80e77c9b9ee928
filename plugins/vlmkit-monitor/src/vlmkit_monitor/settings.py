"""What an operator can set about monitors."""

import msgspec


class PrometheusSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What ``/metrics`` shows.

    Attributes:
        vllm_names: tell what vLLM's dashboards ask for under its names, too.
    """

    vllm_names: bool = True
