"""Contexts of the TLS library, from the configs of a listener or of a client. Uses OpenSSL by Python's `ssl`."""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from kbroker.config.listener import ListenerConfig
from kbroker.errors import UserError
from kbroker.security.cipher_suites import TLS_1_3_SUITES, openssl_name
from kbroker.security.key_stores import KeyMaterial, load_key_material, load_trusted_certificates

__all__ = ["check_own_trust", "client_context", "handshake_problem", "server_context"]

_VERIFY: Final = {"required": ssl.CERT_REQUIRED, "requested": ssl.CERT_OPTIONAL, "none": ssl.CERT_NONE}
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
# A JDK of today refuses these too.
_OLD_VERSIONS: Final = ("SSLv2Hello", "SSLv3", "TLSv1", "TLSv1.1")


def server_context(config: ListenerConfig, keys: KeyMaterial) -> ssl.SSLContext:
    """Returns the context of a listener. Raises UserError if the configs do not fit together."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.verify_mode = _VERIFY[config.ssl_client_auth]
    _apply(context, config, keys, ssl.Purpose.CLIENT_AUTH)
    return context


def client_context(config: ListenerConfig) -> ssl.SSLContext:
    """Returns the context of outbound connections: the certificate of the server is always verified.

    Its name is verified unless ssl.endpoint.identification.algorithm is empty. Raises UserError if the configs do not
    fit together.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    algorithm = config.ssl_endpoint_identification_algorithm
    if algorithm.lower() not in ("", "https"):
        raise UserError(f"ssl.endpoint.identification.algorithm={algorithm} must be https or empty")
    context.check_hostname = algorithm != ""
    _apply(context, config, load_key_material(config), ssl.Purpose.SERVER_AUTH)
    return context


def _apply(context: ssl.SSLContext, config: ListenerConfig, keys: KeyMaterial | None, purpose: ssl.Purpose) -> None:
    _set_versions(context, config.ssl_enabled_protocols)
    _set_ciphers(context, config.ssl_cipher_suites)
    # As in Java: any trusted certificate ends a chain, also one that is not self-signed.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    trusted = load_trusted_certificates(config)
    if trusted is not None:
        _trust(context, trusted)
    elif context.verify_mode is not ssl.CERT_NONE:
        context.load_default_certs(purpose)
    if keys is not None:
        _use_keys(context, keys)


def _set_versions(context: ssl.SSLContext, names: Sequence[str]) -> None:
    for name in names:
        if name not in _VERSIONS and name not in _OLD_VERSIONS:
            raise UserError(f"ssl.enabled.protocols has the unknown TLS version {name}")
    versions = [_VERSIONS[name] for name in names if name in _VERSIONS]
    if not versions:
        raise UserError(f"ssl.enabled.protocols={','.join(names)} has neither TLSv1.2 nor TLSv1.3")
    context.minimum_version = min(versions)
    context.maximum_version = max(versions)


def _set_ciphers(context: ssl.SSLContext, names: Sequence[str]) -> None:
    """Enables these cipher suites. Python cannot select suites of TLS 1.3: there it is all of them, or no TLS 1.3."""
    if not names:
        return
    older = [name for name in names if name not in TLS_1_3_SUITES]
    for name in older:
        try:
            context.set_ciphers(openssl_name(name))
        except ssl.SSLError:
            raise UserError(f"ssl.cipher.suites has the unsupported cipher suite {name}") from None
    if older:
        context.set_ciphers(":".join(map(openssl_name, older)))
    if not older:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    if len(older) == len(names):
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    if context.minimum_version > context.maximum_version:
        raise UserError("ssl.cipher.suites has no suite for the versions in ssl.enabled.protocols")


def _trust(context: ssl.SSLContext, certificates: Sequence[bytes]) -> None:
    try:
        context.load_verify_locations(cadata=b"".join(dict.fromkeys(certificates)))
    except ssl.SSLError as problem:
        raise UserError(f"A trusted certificate cannot be used: {problem.reason or problem}") from None


def _use_keys(context: ssl.SSLContext, keys: KeyMaterial) -> None:
    with _secret_file(f"{keys.key}{keys.chain_pem}") as path:
        try:
            # Without a password OpenSSL would ask for it on the terminal.
            context.load_cert_chain(path, password=keys.key_password or "")
        except ssl.SSLError as problem:
            raise UserError(_key_problem(problem, is_encrypted=keys.key_password is not None)) from None


def _key_problem(problem: ssl.SSLError, *, is_encrypted: bool) -> str:
    if problem.reason == "KEY_VALUES_MISMATCH":
        return "The private key does not belong to the certificate: check ssl.keystore.location"
    if is_encrypted:
        return "The private key cannot be read: check ssl.key.password"
    return f"The private key or its certificate cannot be used: {problem.reason or problem}"


@contextmanager
def _secret_file(text: str) -> Iterator[str]:
    """Yields the path of a file with the text: OpenSSL reads keys from files only. No other user can read it."""
    data = text.encode()
    if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
        descriptor = os.memfd_create("kbroker-key", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, data)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    with tempfile.NamedTemporaryFile(prefix="kbroker-") as file:
        file.write(data)
        file.flush()
        yield file.name


def check_own_trust(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Raises UserError if a client with these settings could not connect to this server: brokers connect so.

    Names of hosts are not checked.
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    was_checked, client.check_hostname = client.check_hostname, False
    try:
        sides = [
            server.wrap_bio(to_server, to_client, server_side=True),
            client.wrap_bio(to_client, to_server, server_side=False),
        ]
        for _ in range(4):  # flights of a handshake
            for side in reversed(sides):
                try:
                    side.do_handshake()
                except ssl.SSLWantReadError:
                    continue
    except ssl.SSLError as problem:
        raise UserError(
            "A client SSLEngine created with the provided settings can't connect to a server SSLEngine created with "
            f"those settings: {handshake_problem(problem)}"
        ) from None
    finally:
        client.check_hostname = was_checked


def handshake_problem(problem: ssl.SSLError) -> str:
    """Returns the reason of a failed handshake as text, from the view of the side that has noticed it."""
    if isinstance(problem, ssl.SSLCertVerificationError):
        return f"the certificate of the peer is not valid: {problem.verify_message}"
    reason = (problem.reason or str(problem)).lower().replace("_", " ")
    _, separator, alert = reason.partition(" alert ")
    return f"the peer refused it with the alert {alert}" if separator else reason
