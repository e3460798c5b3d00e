"""Both implementations of CRC-32C, and the choice between them."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.protocol import crc32c as crc32c_module
from kbroker.protocol.crc32c import crc32c, from_crc32c_package, from_crcmod

PACKAGE = from_crc32c_package()
CRCMOD = from_crcmod()


@pytest.mark.parametrize("checksum", [PACKAGE, CRCMOD, crc32c])
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"123456789", 0xE3069283),  # the check value of the catalogue of CRCs
        (bytes(32), 0x8A9136AA),  # these three: RFC 3720, B.4
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (b"", 0),
    ],
)
def test_known_values(checksum: Callable[[bytes], int], data: bytes, expected: int) -> None:
    assert checksum(data) == expected


@given(st.binary(max_size=300), st.integers(0, 10))
def test_both_implementations_agree_on_any_bytes_and_views(data: bytes, start: int) -> None:
    assert PACKAGE(data) == CRCMOD(data)
    view = memoryview(bytearray(data))[start:]
    assert PACKAGE(view) == CRCMOD(view) == crc32c(bytes(view))


def test_the_package_is_preferred() -> None:
    assert crc32c_module.IMPLEMENTATION == "crc32c"


def test_crcmod_stands_in_where_the_package_is_missing() -> None:
    script = (
        "import sys\n"
        "from importlib.machinery import PathFinder\n"
        "find = PathFinder.find_spec\n"
        "PathFinder.find_spec = lambda name, *rest: None if name == 'crc32c' else find(name, *rest)\n"
        "from kbroker.protocol import crc32c as chosen\n"
        "print(chosen.IMPLEMENTATION, hex(chosen.crc32c(b'123456789')))\n"
    )
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert output.split() == ["crcmod", "0xe3069283"]


def test_the_choice_does_not_pay_for_the_packages_slow_import() -> None:
    script = "import sys, kbroker.protocol.crc32c; print('importlib.metadata' in sys.modules)"
    output = subprocess.run(
        [sys.executable, "-S", "-c", _with_path(script)], capture_output=True, text=True, check=True
    )
    assert output.stdout.strip() == "False"


def test_an_already_imported_package_is_used_as_it_is() -> None:
    package = importlib.import_module("crc32c")
    assert from_crc32c_package() is package.crc32c


def _with_path(script: str) -> str:
    """`-S` keeps site's own imports out of the measurement; the path is handed over instead."""
    return f"import sys; sys.path[:] = {sys.path!r}\n{script}"
