"""JSON Web Keys (RFC 7517): the public keys of a token issuer, and signatures that they verify.

RSA needs the standard library only: verifying is one power and one comparison. Elliptic curves need `cryptography`.
The algorithm of a token must belong to the type of its key: an RSA key never verifies an HMAC (RFC 8725, 2.1).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from kbroker.errors import UserError
from kbroker.security.cryptography_library import elliptic_signature_check

__all__ = ["MAX_JWKS_BYTES", "JsonWebKeys", "VerificationKey", "decode_base64url", "parse_jwks"]

MAX_JWKS_BYTES: Final = 1 << 20
_MAX_KEYS: Final = 200
_MIN_RSA_BITS: Final = 1024
_MAX_RSA_BITS: Final = 8192
_MAX_EXPONENT_BITS: Final = 64

# DigestInfo of RFC 8017, 9.2: what precedes the hash in a PKCS #1 v1.5 signature.
_DIGEST_INFO: Final = {
    "sha256": bytes.fromhex("3031300d060960864801650304020105000420"),
    "sha384": bytes.fromhex("3041300d060960864801650304020205000430"),
    "sha512": bytes.fromhex("3051300d060960864801650304020305000440"),
}
_CURVES: Final = {"P-256": ("ES256", 32), "P-384": ("ES384", 48), "P-521": ("ES512", 66)}
_HASHES: Final = {"256": "sha256", "384": "sha384", "512": "sha512"}


class VerificationKey(NamedTuple):
    """One public key. `verify` gets the algorithm, the signed bytes and the signature."""

    key_id: str | None
    algorithms: frozenset[str]
    verify: Callable[[str, bytes, bytes], bool]


class JsonWebKeys:
    """Keys of one issuer."""

    def __init__(self, keys: Sequence[VerificationKey] = ()) -> None:
        self._keys = tuple(keys)

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, algorithm: str, key_id: str | None) -> VerificationKey | None:
        """Returns the key for a token, or None. A token without key id fits only if one key fits."""
        suitable = [
            key for key in self._keys if algorithm in key.algorithms and (key_id is None or key.key_id == key_id)
        ]
        return suitable[0] if suitable and (key_id is not None or len(suitable) == 1) else None


def parse_jwks(data: bytes) -> JsonWebKeys:
    """Parses a key set. Skips keys of unknown types, and keys for encryption. Raises ValueError if it has no key."""
    if len(data) > MAX_JWKS_BYTES:
        raise ValueError(f"the key set is larger than {MAX_JWKS_BYTES} bytes")
    try:
        entries = json.loads(data)["keys"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError("not a JSON Web Key Set: expected an object with the member 'keys'") from None
    if not isinstance(entries, list):
        raise ValueError("not a JSON Web Key Set: 'keys' is not a list")
    found = [key for entry in entries[:_MAX_KEYS] if isinstance(entry, dict) and (key := _key(entry)) is not None]
    if not found:
        raise ValueError("the key set has no RSA key for signatures, and no EC key that can be used (kbroker[tls])")
    return JsonWebKeys(found)


def _key(entry: Mapping[str, Any]) -> VerificationKey | None:
    if entry.get("use", "sig") != "sig":
        return None
    try:
        if entry.get("kty") == "RSA":
            algorithms, verify = _rsa_key(entry)
        elif entry.get("kty") == "EC":
            algorithms, verify = _elliptic_key(entry)
        else:
            return None
    except (ValueError, TypeError, KeyError):
        return None
    declared = entry.get("alg")
    if isinstance(declared, str):
        algorithms = algorithms & {declared}
    key_id = entry.get("kid")
    return VerificationKey(key_id if isinstance(key_id, str) else None, algorithms, verify)


def decode_base64url(text: str) -> bytes:
    """Raises ValueError if the text is not base64url without padding."""
    if "=" in text or "+" in text or "/" in text:
        raise ValueError("not base64url")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error:
        raise ValueError("not base64url") from None


def _rsa_key(entry: Mapping[str, Any]) -> tuple[frozenset[str], Callable[[str, bytes, bytes], bool]]:
    modulus = int.from_bytes(decode_base64url(entry["n"]), "big")
    exponent = int.from_bytes(decode_base64url(entry["e"]), "big")
    if not _MIN_RSA_BITS <= modulus.bit_length() <= _MAX_RSA_BITS:
        raise ValueError("unsupported size of an RSA key")
    if exponent < 3 or exponent.bit_length() > _MAX_EXPONENT_BITS:
        raise ValueError("unsupported exponent of an RSA key")

    def verify(algorithm: str, signed: bytes, signature: bytes) -> bool:
        digest = _HASHES[algorithm[2:]]
        if algorithm.startswith("RS"):
            return _is_pkcs1_signature(modulus, exponent, digest, signed, signature)
        return _is_pss_signature(modulus, exponent, digest, signed, signature)

    return frozenset(kind + bits for kind in ("RS", "PS") for bits in _HASHES), verify


def _encoded_message(modulus: int, exponent: int, signature: bytes) -> bytes | None:
    size = (modulus.bit_length() + 7) // 8
    number = int.from_bytes(signature, "big")
    if len(signature) != size or number >= modulus:
        return None
    return pow(number, exponent, modulus).to_bytes(size, "big")


def _is_pkcs1_signature(modulus: int, exponent: int, digest: str, signed: bytes, signature: bytes) -> bool:
    """Whether the signature is RSASSA-PKCS1-v1_5 (RFC 8017, 8.2.2). Compares whole messages: no padding is parsed."""
    encoded = _encoded_message(modulus, exponent, signature)
    if encoded is None:
        return False
    info = _DIGEST_INFO[digest] + hashlib.new(digest, signed).digest()
    expected = b"\x00\x01" + b"\xff" * (len(encoded) - len(info) - 3) + b"\x00" + info
    return hmac.compare_digest(encoded, expected)


def _is_pss_signature(modulus: int, exponent: int, digest: str, signed: bytes, signature: bytes) -> bool:
    """Whether the signature is RSASSA-PSS with a salt as long as the hash (RFC 7518, 3.5; RFC 8017, 9.1.2)."""
    encoded = _encoded_message(modulus, exponent, signature)
    if encoded is None:
        return False
    bits = modulus.bit_length() - 1
    encoded = encoded[len(encoded) - (bits + 7) // 8 :]
    size = hashlib.new(digest).digest_size
    if len(encoded) < 2 * size + 2 or encoded[-1] != 0xBC:
        return False
    masked, hashed = encoded[: -size - 1], encoded[-size - 1 : -1]
    mask = _mask(hashed, len(masked), digest)
    block = bytearray(one ^ other for one, other in zip(masked, mask, strict=True))
    unused_bits = 8 * len(encoded) - bits
    if masked[0] >> (8 - unused_bits):
        return False
    block[0] &= 0xFF >> unused_bits
    padding, salt = bytes(block[:-size]), bytes(block[-size:])
    if padding != b"\x00" * (len(padding) - 1) + b"\x01":
        return False
    message = b"\x00" * 8 + hashlib.new(digest, signed).digest() + salt
    return hmac.compare_digest(hashlib.new(digest, message).digest(), hashed)


def _mask(seed: bytes, size: int, digest: str) -> bytes:
    """Returns MGF1 of RFC 8017, B.2.1."""
    mask = b""
    counter = 0
    while len(mask) < size:
        mask += hashlib.new(digest, seed + counter.to_bytes(4, "big")).digest()
        counter += 1
    return mask[:size]


def _elliptic_key(entry: Mapping[str, Any]) -> tuple[frozenset[str], Callable[[str, bytes, bytes], bool]]:
    algorithm, size = _CURVES[entry["crv"]]
    x, y = decode_base64url(entry["x"]), decode_base64url(entry["y"])
    if len(x) != size or len(y) != size:
        raise ValueError("invalid point of an EC key")
    try:
        check = elliptic_signature_check(entry["crv"], int.from_bytes(x, "big"), int.from_bytes(y, "big"))
    except UserError as problem:
        raise ValueError(str(problem)) from None
    return frozenset((algorithm,)), lambda _algorithm, signed, signature: check(signed, signature)
