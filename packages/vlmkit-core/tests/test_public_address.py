"""Public addresses: none in IANA's special-purpose registries is public; neighbours are."""

import ipaddress

import pytest
from hypothesis import given, strategies as st

from vlmkit.kit._public_address import is_public

# iana-ipv4-special-registry and iana-ipv6-special-registry, row by row;
# then the multicast registries, and abandoned networks.
REGISTRIES = [
    *("0.0.0.0/8", "0.0.0.0/32", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16"),
    *("172.16.0.0/12", "192.0.0.0/24", "192.0.0.0/29", "192.0.0.8/32", "192.0.0.9/32"),
    *("192.0.0.10/32", "192.0.0.170/32", "192.0.0.171/32", "192.0.2.0/24", "192.31.196.0/24"),
    *("192.52.193.0/24", "192.88.99.0/24", "192.88.99.2/32", "192.168.0.0/16", "192.175.48.0/24"),
    *("198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4", "255.255.255.255/32"),
    *("::1/128", "::/128", "::ffff:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64"),
    *("100:0:0:1::/64", "2001::/23", "2001::/32", "2001:1::1/128", "2001:1::2/128"),
    *("2001:1::3/128", "2001:2::/48", "2001:3::/32", "2001:4:112::/48", "2001:10::/28"),
    *("2001:20::/28", "2001:30::/28", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48"),
    *("3fff::/20", "5f00::/16", "fc00::/7", "fe80::/10", "224.0.0.0/4", "ff00::/8", "fec0::/10"),
    "::/96",
]

IN_IPV6 = ["::", "::ffff:0:0", "64:ff9b::", "64:ff9b:1::", "64:ff9b:1:fffe::", "fe80::"]


@pytest.mark.parametrize("row", REGISTRIES)
def test_no_address_of_a_special_purpose_registry_is_public(row):
    network = ipaddress.ip_network(row)
    middle = network[network.num_addresses // 2]
    assert not any(map(is_public, (network[0], middle, network[-1])))


@pytest.mark.parametrize(
    "text",
    [
        *("1.1.1.1", "8.8.8.8", "93.184.215.14", "100.63.255.255", "100.128.0.0", "128.0.0.0"),
        *("172.15.255.255", "172.32.0.0", "192.0.1.0", "198.17.255.255", "198.20.0.0"),
        *("223.255.255.255", "9.255.255.255", "11.0.0.0", "169.253.255.255", "169.255.0.0"),
        *("2606:4700:4700::1111", "2001:4860:4860::8888", "2a00:1450:4001::1", "2001:200::"),
        *("2003::", "2001:db9::", "2620:4f:8001::", "3ffe:ffff:ffff:ffff::"),
    ],
)
def test_addresses_next_to_special_networks_are_public(text):
    assert is_public(ipaddress.ip_address(text))


@given(st.ip_addresses(v=4), st.sampled_from(IN_IPV6))
def test_an_ipv6_address_with_a_private_ipv4_address_is_not_public(address, prefix):
    assert not is_public(ipaddress.IPv6Address(int(ipaddress.IPv6Address(prefix)) + int(address)))
    assert not is_public(ipaddress.IPv6Address((0x2002 << 112) + (int(address) << 80)))  # 6to4
    assert not is_public(ipaddress.IPv6Address((0x20010000 << 96) + int(address)))  # Teredo
