"""The fair share of a bounded resource that cannot be preempted. A rule that keeps no state."""

RESERVE_DIVISOR = 8  # one part in eight is reserved for tenants below their share


def may_acquire(amount: int, *, limit: int, used: int, own_used: int, num_tenants: int) -> bool:
    """Return whether a tenant may acquire more of a resource.

    A lone tenant may have all but an eighth. That eighth is reserved for tenants below their
    share, which is computed as if one more tenant came. Where nothing is in use, any amount up to
    the limit may be had, even one above the share.

    Args:
        amount: the amount that the tenant wants.
        limit: the amount that exists.
        used: the amount in use by all tenants.
        own_used: the amount in use by this tenant.
        num_tenants: tenants that use some of it, this one included.
    """
    left = limit - used - amount
    if left < 0 or not used:
        return left >= 0
    return own_used + amount <= limit // (num_tenants + 1) or left >= limit // RESERVE_DIVISOR
