"""Addresses: which ones stay on this machine, and which ones are on the open internet."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# IPv6 forms that carry an IPv4 address: who sends to them reaches that one. Python calls some of them
# global whatever they carry.
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_LOCAL_NAT64 = ipaddress.IPv6Network("64:ff9b:1::/48")
_COMPATIBLE = ipaddress.IPv6Network("::/96")


def is_loopback(host: str) -> bool:
    """Whether an address to listen on can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def carried(address: Address) -> Address:
    """The IPv4 address inside an IPv6 form of it; any other address as it is."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if address in _NAT64 or address in _LOCAL_NAT64 or address in _COMPATIBLE:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def is_public(address: Address) -> bool:
    """Whether this is an address of the open internet, also once it is unwrapped."""
    inner = carried(address)
    return all(
        one.is_global and not (one.is_multicast or one.is_reserved or one.is_unspecified)
        for one in {address if inner is address else inner, inner}
    )


def is_within(address: Address, networks: Iterable[Network]) -> bool:
    inner = carried(address)
    return any(inner in network for network in networks if network.version == inner.version)
