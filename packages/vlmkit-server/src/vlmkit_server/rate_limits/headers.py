"""Rate-limit headers, in OpenAI's format, or in Anthropic's on its routes."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from vlmkit_server.rate_limits.tenant_usage import TenantUsage

_PARTS = ("limit", "remaining", "reset")
_NAMES = ("requests", "tokens", "image-tokens", "images")

EXPOSED = (
    *(f"x-ratelimit-{part}-{name}" for name in _NAMES for part in _PARTS),
    *(f"anthropic-ratelimit-{name}-{part}" for name in _NAMES for part in _PARTS),
)
"""Names of the headers that CORS exposes to web pages."""


def limit_headers(usage: TenantUsage, path: str) -> Iterator[tuple[str, str]]:
    """Yield headers with the state of the limits.

    Args:
        usage: the usage that the request is charged to.
        path: the request's path, which decides the format.
    """
    is_anthropics = path == "/v1/messages" or path.startswith("/v1/messages/")
    for unit, (most, num_left, reset_s) in usage.standings().items():
        name = unit.replace("_", "-")
        if is_anthropics:
            start = f"anthropic-ratelimit-{name}-"
            at = datetime.now(UTC) + timedelta(seconds=reset_s)
            yield start + "limit", str(most)
            yield start + "remaining", str(num_left)
            yield start + "reset", at.isoformat(timespec="seconds").replace("+00:00", "Z")
        else:
            yield f"x-ratelimit-limit-{name}", str(most)
            yield f"x-ratelimit-remaining-{name}", str(num_left)
            yield f"x-ratelimit-reset-{name}", duration(reset_s)


def duration(seconds: float) -> str:
    """Return a time in OpenAI's format, such as ``6m0s`` or ``20ms``, rounded up."""
    milliseconds = -int(-seconds * 1000 // 1)
    if milliseconds < 1000:
        return f"{milliseconds}ms" if milliseconds else "0s"
    whole_s, rest_ms = divmod(milliseconds, 1000)
    minutes, whole_s = divmod(whole_s, 60)
    hours, minutes = divmod(minutes, 60)
    rest = f".{rest_ms:03}".rstrip("0") if rest_ms else ""
    text = f"{whole_s}{rest}s"
    if hours or minutes:
        text = f"{minutes}m{text}"
    return f"{hours}h{text}" if hours else text
