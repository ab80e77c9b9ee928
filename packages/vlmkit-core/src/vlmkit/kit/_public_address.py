"""Classifies IP addresses as public or not, equally for every version of Python.

We keep our own list, because ``is_global`` of ``ipaddress`` changed between releases, and includes
networks that embed IPv4 addresses in IPv6. Resolves no names.

The networks are all rows of IANA's registries as of 2025. Rows that are globally reachable but
serve only infrastructure are included:

* IPv4 and IPv6 Special-Purpose Address Registries, RFC 6890 and RFC 8190,
* IPv4 and IPv6 Multicast Address Space Registries,

and networks that RFCs deprecated: RFC 3879 (``fec0::/10``), RFC 4291 (``::/96``), RFC 7526
(``192.88.99.0/24``). No unicast IPv6 network outside ``2000::/3`` has been allocated.
"""

import ipaddress

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

SPECIAL_IPV4 = tuple(
    map(
        ipaddress.IPv4Network,
        (
            "0.0.0.0/8",  # this network
            "10.0.0.0/8",  # private
            "100.64.0.0/10",  # carrier-grade NAT
            "127.0.0.0/8",  # this machine
            "169.254.0.0/16",  # link-local, and metadata services of clouds
            "172.16.0.0/12",  # private
            "192.0.0.0/24",  # protocols
            "192.0.2.0/24",  # documentation
            "192.31.196.0/24",  # AS112
            "192.52.193.0/24",  # automatic multicast tunneling
            "192.88.99.0/24",  # 6to4 relays
            "192.168.0.0/16",  # private
            "192.175.48.0/24",  # AS112
            "198.18.0.0/15",  # benchmarks
            "198.51.100.0/24",  # documentation
            "203.0.113.0/24",  # documentation
            "224.0.0.0/4",  # multicast
            "240.0.0.0/4",  # reserved, and broadcast
        ),
    )
)

UNICAST_IPV6 = ipaddress.IPv6Network("2000::/3")
"""All public unicast networks of IPv6.

Outside it are reserved networks and these:

* loopback ``::1``, unspecified ``::``, IPv4 as IPv6 (``::/96``, ``::ffff:0:0/96``),
* translation (``64:ff9b::/96``, ``64:ff9b:1::/48``), discard (``100::/64``, ``100:0:0:1::/64``),
* segment routing (``5f00::/16``), private (``fc00::/7``, ``fec0::/10``),
* link-local (``fe80::/10``) and multicast (``ff00::/8``).
"""

SPECIAL_IPV6 = tuple(
    map(
        ipaddress.IPv6Network,
        (
            "2001::/23",  # protocols: Teredo, benchmarks, ORCHID
            "2001:db8::/32",  # documentation
            "2002::/16",  # 6to4, which embeds an IPv4 address
            "2620:4f:8000::/48",  # AS112
            "3fff::/20",  # documentation
        ),
    )
)


def is_public(address: Address) -> bool:
    """Return whether an address is public by itself, without translation or embedding."""
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in SPECIAL_IPV4)
    return address in UNICAST_IPV6 and not any(address in network for network in SPECIAL_IPV6)
