"""How much is left, told in each answer: in OpenAI's words, or in Anthropic's on its routes."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from vlmkit_server.rate_limits.tenant_usage import TenantUsage

_PARTS = ("limit", "remaining", "reset")
_NAMES = ("requests", "tokens", "image-tokens", "images")

EXPOSED = (
    *(f"x-ratelimit-{part}-{name}" for name in _NAMES for part in _PARTS),
    *(f"anthropic-ratelimit-{name}-{part}" for name in _NAMES for part in _PARTS),
)
"""Names of the headers that a web page may read."""


def limit_headers(account: TenantUsage, path: str) -> Iterator[tuple[str, str]]:
    """Yield headers that say how an account stands.

    Args:
        account: whose request it is.
        path: of the request, which says whose words are meant.
    """
    is_anthropics = path == "/v1/messages" or path.startswith("/v1/messages/")
    for unit, (most, num_left, reset_s) in account.standings().items():
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
    """Return a time as OpenAI's servers write it, such as ``6m0s`` or ``20ms``; never too short."""
    milliseconds = -int(-seconds * 1000 // 1)
    if milliseconds < 1000:
        return f"{milliseconds}ms" if milliseconds else "0s"
    whole_s, rest_ms = divmod(milliseconds, 1000)
    minutes, whole_s = divmod(whole_s, 60)
    hours, minutes = divmod(minutes, 60)
    rest = f".{rest_ms:03}".rstrip("0") if rest_ms else ""
    told = f"{whole_s}{rest}s"
    if hours or minutes:
        told = f"{minutes}m{told}"
    return f"{hours}h{told}" if hours else told
