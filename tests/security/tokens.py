"""Makes JSON Web Tokens and key sets for tests: RSA with small pure arithmetic, so that no library is needed."""

from __future__ import annotations

import base64
import hashlib
import json
import random
from functools import cache
from typing import Any, NamedTuple

NOW_MS = 1_700_000_000_000
_INFO = bytes.fromhex("3031300d060960864801650304020105000420")


class RsaKey(NamedTuple):
    modulus: int
    private: int
    public: int = 65537

    @property
    def size(self) -> int:
        return (self.modulus.bit_length() + 7) // 8

    def sign(self, message: bytes) -> bytes:
        info = _INFO + hashlib.sha256(message).digest()
        encoded = b"\x00\x01" + b"\xff" * (self.size - len(info) - 3) + b"\x00" + info
        return pow(int.from_bytes(encoded, "big"), self.private, self.modulus).to_bytes(self.size, "big")

    def sign_pss(self, message: bytes, salt: bytes = b"s" * 32) -> bytes:
        hashed = hashlib.sha256(b"\0" * 8 + hashlib.sha256(message).digest() + salt).digest()
        length = self.size - 32 - 1
        block = b"\0" * (length - len(salt) - 1) + b"\x01" + salt
        mask = b"".join(hashlib.sha256(hashed + n.to_bytes(4, "big")).digest() for n in range(length // 32 + 1))
        masked = bytearray(a ^ b for a, b in zip(block, mask, strict=False))
        masked[0] &= 0x7F
        encoded = bytes(masked) + hashed + b"\xbc"
        return pow(int.from_bytes(encoded, "big"), self.private, self.modulus).to_bytes(self.size, "big")

    def jwk(self, **members: Any) -> dict[str, Any]:
        n, e = (
            encode(number.to_bytes((number.bit_length() + 7) // 8, "big")) for number in (self.modulus, self.public)
        )
        return {"kty": "RSA", "n": n, "e": e, **members}


@cache
def rsa_key(seed: int = 1) -> RsaKey:
    """Returns a key of 1024 bits: only tests may use such a small one."""
    randomness = random.Random(seed)
    while True:
        p, q = _prime(randomness), _prime(randomness)
        modulus, order = p * q, (p - 1) * (q - 1)
        if modulus.bit_length() == 1024 and order % 65537:
            return RsaKey(modulus, pow(65537, -1, order))


def _prime(randomness: random.Random) -> int:
    while True:
        number = randomness.getrandbits(512) | 3 << 510 | 1
        if all(pow(base, number - 1, number) == 1 for base in (2, 3, 5, 7, 11, 13)):
            return number


def encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def claims(**changes: Any) -> dict[str, Any]:
    now = NOW_MS // 1000
    found = {"sub": "alice", "iat": now - 10, "exp": now + 3600, "iss": "https://issuer", "aud": "kafka", **changes}
    return {name: value for name, value in found.items() if value is not None}


def unsigned(header: dict[str, Any], body: dict[str, Any]) -> str:
    return f"{encode(json.dumps(header).encode())}.{encode(json.dumps(body).encode())}"


def token(key: RsaKey | None = None, *, alg: str = "RS256", kid: str | None = "k1", **changes: Any) -> str:
    key = rsa_key() if key is None else key
    header = {"alg": alg} if kid is None else {"alg": alg, "kid": kid}
    text = unsigned(header, claims(**changes))
    sign = key.sign_pss if alg.startswith("PS") else key.sign
    return f"{text}.{encode(sign(text.encode()))}"


def key_set(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": list(keys) or [rsa_key().jwk(kid="k1", use="sig")]}).encode()
