"""Addresses in the text of Java's InetAddress, which ACL entries have."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv6Address

__all__ = ["java_host"]


@lru_cache(maxsize=4096)
def java_host(host: str) -> str:
    """Returns the address as Java prints it.

    IPv6 has eight groups without `::`, and an IPv4 address that is mapped to IPv6 is printed as IPv4. A text that is
    not an IPv6 address is returned unchanged.
    """
    if ":" not in host:
        return host
    plain, percent, scope = host.partition("%")
    try:
        address = IPv6Address(plain)
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return ":".join(f"{int(group, 16):x}" for group in address.exploded.split(":")) + percent + scope
