"""The usage of all keys and all addresses."""

import time
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from vlmkit_server.auth.key import Key
from vlmkit_server.rate_limits.tenant_usage import Clock, TenantUsage
from vlmkit_server.settings.limits import LimitsSettings, limits_of

if TYPE_CHECKING:
    from vlmkit_server.rate_limits.usage_file import UsageFile, Used

MAX_ADDRESSES = 2**16  # whose usage is remembered


class TenantUsages:
    """Finds the usage that a request is charged to. It is used in the event loop's thread.

    Args:
        settings: the limits of all keys and addresses, and the usage file.
        clock: returns the time.

    Raises:
        ConfigError: the usage file cannot be used.
    """

    def __init__(self, settings: LimitsSettings, clock: Clock = time.time_ns) -> None:
        self._key_limits = limits_of(settings.key)
        self._address_limits = limits_of(settings.address)
        self._clock = clock
        self._keys: dict[str, tuple[tuple[str, ...], TenantUsage]] = {}
        self._addresses: OrderedDict[str, TenantUsage] = OrderedDict()
        self._file = self._opened(settings.usage_file) if settings.usage_file else None

    def _opened(self, path: str) -> "UsageFile":
        from vlmkit_server.rate_limits.usage_file import (
            UsageFile,  # imports SQLite, which few servers need
        )

        return UsageFile(Path(path), self._used)

    def start(self) -> None:
        """Start to persist the usage."""
        if self._file is not None:
            self._file.start()

    def close(self) -> None:
        """Persist the usage, and close the file."""
        if self._file is not None:
            self._file.close()

    def of_key(self, key: Key) -> TenantUsage | None:
        """Return the usage of a key, if it has a limit."""
        texts, usage = self._keys.get(key.id, ((), None))
        if usage is not None and texts == key.limits:
            return usage
        override = limits_of(key.limits)
        named = {(limit.unit, limit.period): limit for limit in (*self._key_limits, *override)}
        limits = tuple(named.values())
        if usage is not None:
            usage.change(limits)
        elif limits:
            usage = TenantUsage("this API key", limits, self._clock)
            if self._file is not None:
                usage.restore(self._file.found.pop(key.id, ()))
        if usage is not None:
            self._keys[key.id] = (key.limits, usage)
        return usage if limits else None

    def of_address(self, address: str) -> TenantUsage | None:
        """Return the usage of an address, if addresses have limits."""
        if not self._address_limits:
            return None
        usage = self._addresses.get(address)
        if usage is None:
            usage = TenantUsage("this address", self._address_limits, self._clock)
            self._addresses[address] = usage
            self._forget()
        self._addresses.move_to_end(address)
        return usage

    def _forget(self) -> None:
        """Evict old addresses: an unused one, or else the oldest."""
        while len(self._addresses) > MAX_ADDRESSES:
            self._addresses.popitem(last=False)
        oldest = next(iter(self._addresses))
        if len(self._addresses) > 1 and self._addresses[oldest].is_untouched:
            del self._addresses[oldest]

    def _used(self) -> "Iterator[Used]":
        for key_id, (_, usage) in list(self._keys.items()):
            for used in usage.sums():
                yield key_id, used
