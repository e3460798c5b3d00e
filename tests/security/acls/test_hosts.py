"""Addresses in Java's text."""

from __future__ import annotations

import pytest

from kbroker.security.acls.hosts import java_host


@pytest.mark.parametrize(
    ("host", "java"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::1", "0:0:0:0:0:0:0:1"),
        ("2001:db8::00ff", "2001:db8:0:0:0:0:0:ff"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("fe80::1%eth0", "fe80:0:0:0:0:0:0:1%eth0"),
        ("not:an:address", "not:an:address"),
    ],
)
def test_addresses_are_printed_as_java_prints_them(host: str, java: str) -> None:
    assert java_host(host) == java
