"""What accounts keep in a bounded store, and who forgets where there is no room for more."""

from collections import Counter
from collections.abc import Iterator


class EvictionPolicy:
    """Counts what is kept, in number and bytes, of each account and in all.

    Args:
        max_num: things.
        max_bytes: of all of them.
    """

    def __init__(self, max_num: int, max_bytes: int) -> None:
        self._max_num = max_num
        self._max_bytes = max_bytes
        self._nums: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self.num = self.num_bytes = 0

    def copy(self) -> "EvictionPolicy":
        """Return the same, to try something out."""
        other = EvictionPolicy(self._max_num, self._max_bytes)
        other.num, other.num_bytes = self.num, self.num_bytes
        other._nums, other._bytes = self._nums.copy(), self._bytes.copy()
        return other

    def add(self, account: str, num: int, num_bytes: int) -> None:
        """Count more, or less, of an account."""
        self.num += num
        self.num_bytes += num_bytes
        for counts, change in ((self._nums, num), (self._bytes, num_bytes)):
            counts[account] += change
            if not counts[account]:
                del counts[account]

    def has_room(self, num: int = 0, num_bytes: int = 0) -> bool:
        """Tell whether so much more is within the bounds."""
        return self.num + num <= self._max_num and self.num_bytes + num_bytes <= self._max_bytes

    def who_forgets(self, account: str, num: int = 0, num_bytes: int = 0) -> Iterator[str]:
        """Yield who has to forget something so that an account can keep more, best first.

        It is those that have more than it would have, of that of which there is not enough, whoever
        has most first; and then the account itself.
        """
        is_by_number = self.num + num > self._max_num
        held, more = (self._nums, num) if is_by_number else (self._bytes, num_bytes)
        wanted = held[account] + more
        for other, amount in held.most_common():
            if other == account or amount <= wanted:
                break
            yield other
        yield account
