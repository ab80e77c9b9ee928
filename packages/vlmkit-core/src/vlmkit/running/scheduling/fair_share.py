"""How much of a bounded thing one may claim that cannot be taken back: a rule, without books."""

LEFT_TO_OTHERS = 8  # one part in so many


def may_acquire(amount: int, *, most: int, held: int, own: int, num_accounts: int) -> bool:
    """Tell whether an account may have so much more.

    Alone, it may have all but an eighth; that is left to those who have less than their share, as
    if one more came. What is too small to be divided can be had whole, and what would be over that
    by itself, when nothing is held.

    Args:
        amount: what is wanted.
        most: the bound.
        held: by all.
        own: by this account.
        num_accounts: that hold something, this one included.
    """
    left = most - held - amount
    if left < 0 or not held:
        return left >= 0
    return own + amount <= most // (num_accounts + 1) or left >= most // LEFT_TO_OTHERS
