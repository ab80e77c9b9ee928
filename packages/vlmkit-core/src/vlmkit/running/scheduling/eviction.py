"""Eviction from a bounded store that tenants share fairly.

It counts what each tenant keeps, and says which tenants must lose something. The items themselves
are the store's.
"""

from collections import Counter
from collections.abc import Iterator


class EvictionPolicy:
    """Counts the items and bytes that each tenant keeps, and those of all tenants.

    Args:
        max_num: items of all tenants.
        max_bytes: bytes of all tenants.

    Attributes:
        num: items of all tenants now.
        num_bytes: bytes of all tenants now.
    """

    def __init__(self, max_num: int, max_bytes: int) -> None:
        self._max_num = max_num
        self._max_bytes = max_bytes
        self._nums: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self.num = self.num_bytes = 0

    def copy(self) -> "EvictionPolicy":
        """Return a copy in which a caller can try an eviction."""
        other = EvictionPolicy(self._max_num, self._max_bytes)
        other.num, other.num_bytes = self.num, self.num_bytes
        other._nums, other._bytes = self._nums.copy(), self._bytes.copy()
        return other

    def add(self, tenant: str, num: int, num_bytes: int) -> None:
        """Add items and bytes to the counts of a tenant; negative numbers remove some."""
        self.num += num
        self.num_bytes += num_bytes
        for counts, change in ((self._nums, num), (self._bytes, num_bytes)):
            counts[tenant] += change
            if not counts[tenant]:
                del counts[tenant]

    def fits(self, num: int = 0, num_bytes: int = 0) -> bool:
        """Return whether so many more items and bytes are within the bounds."""
        return self.num + num <= self._max_num and self.num_bytes + num_bytes <= self._max_bytes

    def tenants_to_evict(self, tenant: str, num: int = 0, num_bytes: int = 0) -> Iterator[str]:
        """Yield the tenants that must lose something before a tenant can keep more, in order.

        First come the tenants that hold more of the scarce resource (items or bytes) than this one
        would hold, largest first. This tenant itself is last.
        """
        is_by_number = self.num + num > self._max_num
        held, more = (self._nums, num) if is_by_number else (self._bytes, num_bytes)
        wanted = held[tenant] + more
        for other, amount in held.most_common():
            if other == tenant or amount <= wanted:
                break
            yield other
        yield tenant
