"""SCRAM credentials: made from a password, stored as Kafka's text in `/config/users/<user>`.

    SCRAM-SHA-256 = salt=<base64>,stored_key=<base64>,server_key=<base64>,iterations=4096

The stored keys do not contain the password, but with them it can be guessed, and the broker can be impersonated. So
they are never shown: `repr` hides them.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from typing import Final, NamedTuple

from kbroker.security.mechanism import SCRAM_SHA_256, SCRAM_SHA_512

__all__ = [
    "MAX_ITERATIONS",
    "MIN_ITERATIONS",
    "SCRAM_HASHES",
    "SCRAM_MECHANISMS",
    "ScramCredential",
    "ScramHash",
    "credential_of_password",
    "credential_of_salted_password",
    "format_credential",
    "made_up_credential",
    "new_salt",
    "parse_credential",
    "salted_password",
]

MIN_ITERATIONS: Final = 4096
MAX_ITERATIONS: Final = 16384
# Kafka's salts are random numbers of this many bits, written to the base 36. Made-up salts must look the same.
_SALT_BITS: Final = 130
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


class ScramHash(NamedTuple):
    """A SCRAM mechanism: its name, its number in requests (KIP-554), and its hash function."""

    mechanism: str
    number: int
    digest: str

    @property
    def size(self) -> int:
        return hashlib.new(self.digest).digest_size

    def hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self.digest)

    def hash(self, message: bytes) -> bytes:
        return hashlib.new(self.digest, message).digest()


SCRAM_HASHES: Final = (ScramHash(SCRAM_SHA_256, 1, "sha256"), ScramHash(SCRAM_SHA_512, 2, "sha512"))
SCRAM_MECHANISMS: Final = {scram.mechanism: scram for scram in SCRAM_HASHES}


class ScramCredential(NamedTuple):
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"ScramCredential(iterations={self.iterations}, [hidden])"


def salted_password(scram: ScramHash, password: str, *, salt: bytes, iterations: int) -> bytes:
    """Returns Hi(password, salt, iterations) of RFC 5802. Takes milliseconds. As in Kafka without SASLprep."""
    return hashlib.pbkdf2_hmac(scram.digest, password.encode(), salt, iterations)


def credential_of_salted_password(scram: ScramHash, salted: bytes, *, salt: bytes, iterations: int) -> ScramCredential:
    stored_key = scram.hash(scram.hmac(salted, b"Client Key"))
    return ScramCredential(salt, stored_key, scram.hmac(salted, b"Server Key"), iterations)


def credential_of_password(
    scram: ScramHash, password: str, *, salt: bytes | None = None, iterations: int = MIN_ITERATIONS
) -> ScramCredential:
    """Returns the credential for a password, with a random salt if none is given."""
    salt = new_salt() if salt is None else salt
    salted = salted_password(scram, password, salt=salt, iterations=iterations)
    return credential_of_salted_password(scram, salted, salt=salt, iterations=iterations)


def new_salt() -> bytes:
    return _base_36(secrets.randbits(_SALT_BITS))


def made_up_credential(scram: ScramHash, user: str, secret: bytes) -> ScramCredential:
    """Returns a credential for a user that does not exist: always the same for a user, and no proof ever fits it.

    A client that guesses names gets a salt for each, as for users that exist.
    """
    seed = scram.hmac(secret, f"{scram.mechanism}\0{user}".encode())
    salt = _base_36(int.from_bytes(seed, "big") >> (8 * len(seed) - _SALT_BITS))
    return ScramCredential(salt, secrets.token_bytes(scram.size), secrets.token_bytes(scram.size), MIN_ITERATIONS)


def _base_36(number: int) -> bytes:
    digits = []
    while number:
        number, digit = divmod(number, 36)
        digits.append(_DIGITS[digit])
    return "".join(reversed(digits)).encode() or b"0"


def format_credential(credential: ScramCredential) -> str:
    salt, stored_key, server_key = (
        base64.b64encode(part).decode() for part in (credential.salt, credential.stored_key, credential.server_key)
    )
    return f"salt={salt},stored_key={stored_key},server_key={server_key},iterations={credential.iterations}"


def parse_credential(text: str) -> ScramCredential:
    """Parses the text in the tree. Raises ValueError if it is invalid; the message lacks the text."""
    parts = dict(part.partition("=")[::2] for part in text.split(","))
    if parts.keys() != {"salt", "stored_key", "server_key", "iterations"}:
        raise ValueError("invalid SCRAM credential: expected salt, stored_key, server_key and iterations")
    try:
        salt, stored_key, server_key = (
            base64.b64decode(parts[name], validate=True) for name in ("salt", "stored_key", "server_key")
        )
        return ScramCredential(salt, stored_key, server_key, int(parts["iterations"]))
    except (binascii.Error, ValueError):
        raise ValueError("invalid SCRAM credential: a part is not base64, or not a number") from None
