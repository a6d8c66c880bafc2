"""Addresses: which ones stay on this machine, and which ones are on the open internet."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from winch.core.errors import ConfigError
from winch.core.values.bounds import check_length

MAX_NETWORKS_CHARS = 10_000
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# IPv6 forms that carry an IPv4 address: a packet to them reaches that one.
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_LOCAL_NAT64 = ipaddress.IPv6Network("64:ff9b:1::/48")
_COMPATIBLE = ipaddress.IPv6Network("::/96")

# What Python calls global differs between its releases, so the ranges are written down.
_NOT_PUBLIC_4 = tuple(
    map(
        ipaddress.IPv4Network,
        (
            "0.0.0.0/8",
            "10.0.0.0/8",
            "100.64.0.0/10",  # carriers' own networks
            "127.0.0.0/8",
            "169.254.0.0/16",  # link-local, and the metadata services of clouds
            "172.16.0.0/12",
            "192.0.0.0/24",
            "192.0.2.0/24",
            "192.88.99.0/24",  # relays of 6to4
            "192.168.0.0/16",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "224.0.0.0/4",
            "240.0.0.0/4",
        ),
    )
)
# All assigned addresses; loopback, private, link-local, multicast and the forms that wrap an
# IPv4 address (::ffff:0:0/96, 64:ff9b::/96) lie outside of it.
_PUBLIC_6 = ipaddress.IPv6Network("2000::/3")
_NOT_PUBLIC_6 = tuple(
    map(
        ipaddress.IPv6Network,
        (
            "2001::/23",  # Teredo and other protocols' own
            "2001:db8::/32",
            "2002::/16",  # 6to4: an IPv4 address inside
            "3fff::/20",
        ),
    )
)


def parse_networks(text: str, name: str = "networks") -> tuple[Network, ...]:
    """`10.0.0.0/8, fd00::/8` as networks; raises ConfigError."""
    check_length(text, MAX_NETWORKS_CHARS, name)
    try:
        return tuple(ipaddress.ip_network(one.strip()) for one in text.split(",") if one.strip())
    except ValueError as error:
        raise ConfigError(f"{name} must be like 10.0.0.0/8,192.168.1.7/32: {error}") from error


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


def is_public(text: str) -> bool:
    """Whether this is the address of a machine on the public internet. Anything that is no address in
    its plain form (a name, a number, a zone behind a percent sign) is not."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC_4)
    if address.scope_id is not None or address not in _PUBLIC_6:
        return False
    return not any(address in network for network in _NOT_PUBLIC_6)


def is_within(address: Address, networks: Iterable[Network]) -> bool:
    inner = carried(address)
    return any(inner in network for network in networks if network.version == inner.version)
