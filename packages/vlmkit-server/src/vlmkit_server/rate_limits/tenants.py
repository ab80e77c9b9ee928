"""The accounts of all keys, or of all addresses."""

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

MAX_ADDRESSES = 2**16  # whose use is remembered


class TenantUsages:
    """Finds whose limits a request is held to. Is called in the event loop's thread.

    Args:
        settings: limits of all, and the file of what was used.
        clock: tells the time.

    Raises:
        ConfigError: the file cannot be used.
    """

    def __init__(self, settings: LimitsSettings, clock: Clock = time.time_ns) -> None:
        self._of_all = limits_of(settings.key)
        self._of_address = limits_of(settings.address)
        self._clock = clock
        self._keys: dict[str, tuple[tuple[str, ...], TenantUsage]] = {}
        self._addresses: OrderedDict[str, TenantUsage] = OrderedDict()
        self._file = self._opened(settings.usage_file) if settings.usage_file else None

    def _opened(self, path: str) -> "UsageFile":
        from vlmkit_server.rate_limits.usage_file import UsageFile  # with SQLite, which few need

        return UsageFile(Path(path), self._used)

    def start(self) -> None:
        """Begin to keep what is used."""
        if self._file is not None:
            self._file.start()

    def close(self) -> None:
        """Keep what was used, and let the file go."""
        if self._file is not None:
            self._file.close()

    def of_key(self, key: Key) -> TenantUsage | None:
        """Return the account of a key, if it has any limit."""
        texts, account = self._keys.get(key.id, ((), None))
        if account is not None and texts == key.limits:
            return account
        own = limits_of(key.limits)
        named = {(limit.unit, limit.period): limit for limit in (*self._of_all, *own)}
        limits = tuple(named.values())
        if account is not None:
            account.change(limits)
        elif limits:
            account = TenantUsage("this API key", limits, self._clock)
            if self._file is not None:
                account.restore(self._file.found.pop(key.id, ()))
        if account is not None:
            self._keys[key.id] = (key.limits, account)
        return account if limits else None

    def of_address(self, address: str) -> TenantUsage | None:
        """Return the account of an address, if there are limits of those."""
        if not self._of_address:
            return None
        account = self._addresses.get(address)
        if account is None:
            account = TenantUsage("this address", self._of_address, self._clock)
            self._addresses[address] = account
            self._forget()
        self._addresses.move_to_end(address)
        return account

    def _forget(self) -> None:
        """Forget addresses that came long ago: one that has used nothing, or else the oldest."""
        while len(self._addresses) > MAX_ADDRESSES:
            self._addresses.popitem(last=False)
        oldest = next(iter(self._addresses))
        if len(self._addresses) > 1 and self._addresses[oldest].is_untouched:
            del self._addresses[oldest]

    def _used(self) -> "Iterator[Used]":
        for key_id, (_, account) in list(self._keys.items()):
            for used in account.sums():
                yield key_id, used
