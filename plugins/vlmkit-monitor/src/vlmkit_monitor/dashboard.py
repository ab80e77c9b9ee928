"""Builds the dashboard for Grafana from rows of panels with their queries."""

from collections.abc import Sequence as Seq
from typing import Any, NamedTuple

_WIDTH, _HEIGHT = 8, 8
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_OF = '{model=~"$model"}'


class Panel(NamedTuple):
    """One panel.

    Attributes:
        title: the title.
        unit: Grafana's name of the unit.
        queries: each query with the legend of its series.
    """

    title: str
    unit: str
    queries: Seq[tuple[str, str]]


def _quantiles(name: str, by: str = "model") -> Seq[tuple[str, str]]:
    legend = "{{%s}} p%s"
    return [
        (
            (
                f"histogram_quantile(0.{digits}, sum by (le, {by}) "
                f"(rate(vlmkit_{name}_bucket{_OF}[$__rate_interval])))"
            ),
            legend % (by, digits),
        )
        for digits in ("50", "95", "99")
    ]


def _rate(name: str, by: str, of: str = _OF) -> tuple[str, str]:
    return f"sum by ({by}) (rate(vlmkit_{name}{of}[$__rate_interval]))", "{{%s}}" % by  # noqa: UP031


ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Requests",
        (
            Panel("Answers by status", "reqps", [_rate("http_requests_total", "status", "")]),
            Panel("Refusals by code", "reqps", [_rate("refusals_total", "code", "")]),
            Panel("Choices by why they ended", "short", [_rate("choices_total", "finish_reason")]),
            Panel("Time to the first token", "s", _quantiles("time_to_first_token_seconds")),
            Panel("Between two tokens", "s", _quantiles("token_gap_seconds")),
            Panel("Whole requests", "s", _quantiles("request_seconds")),
        ),
    ),
    (
        "Where the time goes",
        (
            Panel("Waiting for the first step", "s", _quantiles("queue_seconds")),
            Panel("Preparing", "s", _quantiles("prepare_seconds")),
            Panel("Pictures by stage", "s", [_rate("image_seconds_sum", "stage")]),
        ),
    ),
    (
        "Tokens",
        (
            Panel("Prompts", "short", [_rate("prompt_tokens_total", "kind")]),
            Panel("Answers", "short", [_rate("generated_tokens_total", "model")]),
            Panel(
                "Share of prompts found in the cache",
                "percentunit",
                [
                    (
                        (
                            f"sum by (model) (rate(vlmkit_cached_prompt_tokens_total{_OF}"
                            "[$__rate_interval])) / sum by (model) "
                            f"(rate(vlmkit_prompt_tokens_total{_OF}[$__rate_interval]))"
                        ),
                        "{{model}}",
                    )
                ],
            ),
        ),
    ),
    (
        "Engine",
        (
            Panel(
                "Sequences",
                "short",
                [
                    (f"vlmkit_sequences_running{_OF}", "{{model}} running"),
                    (f"vlmkit_sequences_waiting{_OF}", "{{model}} waiting"),
                ],
            ),
            Panel(
                "Cache that is used",
                "percentunit",
                [(f"vlmkit_kv_cache_used_tokens{_OF} / vlmkit_kv_cache_tokens{_OF}", "{{model}}")],
            ),
            Panel("Preemptions", "short", [_rate("preemptions_total", "model")]),
            Panel("Steps", "s", _quantiles("step_seconds")),
            Panel(
                "Pictures whose features were there",
                "percentunit",
                [
                    (
                        (
                            f"rate(vlmkit_encoder_cache_hits_total{_OF}[$__rate_interval]) / "
                            f"(rate(vlmkit_encoder_cache_hits_total{_OF}[$__rate_interval]) + "
                            f"rate(vlmkit_encoder_cache_misses_total{_OF}[$__rate_interval]))"
                        ),
                        "{{model}}",
                    )
                ],
            ),
            Panel(
                "Guesses that were right",
                "percentunit",
                [
                    (
                        (
                            f"rate(vlmkit_accepted_draft_tokens_total{_OF}[$__rate_interval]) / "
                            f"rate(vlmkit_draft_tokens_total{_OF}[$__rate_interval])"
                        ),
                        "{{model}}",
                    )
                ],
            ),
        ),
    ),
    (
        "The server",
        (
            Panel(
                "Resources that are used",
                "percentunit",
                [("vlmkit_resource_used / vlmkit_resource_limit", "{{resource}}")],
            ),
            Panel(
                "How late the event loop is",
                "s",
                [
                    (
                        (
                            "histogram_quantile(0.99, sum by (le) "
                            "(rate(vlmkit_event_loop_lag_seconds_bucket[$__rate_interval])))"
                        ),
                        "p99",
                    )
                ],
            ),
            Panel(
                "States of models",
                "short",
                [(f"vlmkit_model_state{_OF} == 1", "{{model}} {{state}}")],
            ),
            Panel("Memory", "bytes", [("process_resident_memory_bytes", "resident")]),
            Panel(
                "Processors",
                "short",
                [("rate(process_cpu_seconds_total[$__rate_interval])", "busy")],
            ),
            Panel(
                "Open files", "short", [("process_open_fds", "open"), ("process_max_fds", "most")]
            ),
        ),
    ),
)


def dashboard() -> dict[str, Any]:
    """Return the dashboard for an import into Grafana."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS:
        position = {"h": 1, "w": 24, "x": 0, "y": top}
        panels.append({"type": "row", "title": title, "gridPos": position, "id": len(panels) + 1})
        top += 1
        for index, panel in enumerate(row):
            left, down = index % 3 * _WIDTH, index // 3 * _HEIGHT
            position = {"h": _HEIGHT, "w": _WIDTH, "x": left, "y": top + down}
            panels.append(_panel(panel, position, len(panels) + 1))
        top += -(-len(row) // 3) * _HEIGHT
    return {
        "title": "vlmkit",
        "uid": "vlmkit",
        "tags": ["vlmkit"],
        "schemaVersion": 39,
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "30s",
        "templating": {"list": [_datasource(), _models()]},
        "panels": panels,
    }


def _panel(panel: Panel, position: dict[str, int], number: int) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": panel.title,
        "id": number,
        "gridPos": position,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + index), "expr": query, "legendFormat": legend}
            for index, (query, legend) in enumerate(panel.queries)
        ],
    }


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus"}


def _models() -> dict[str, Any]:
    return {
        "name": "model",
        "type": "query",
        "datasource": _SOURCE,
        "query": "label_values(vlmkit_model_state, model)",
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }
