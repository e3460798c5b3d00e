"""Users of a test broker: they log in with PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512, all with the same password."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping

from kbroker.controller.config_entities import entity_path
from kbroker.controller.controller import Controller
from kbroker.errors import UserError
from kbroker.security.client_login import ClientLogin, login_of_user
from kbroker.security.credentials import SCRAM_MECHANISMS, credential_of_password, format_credential
from kbroker.security.jaas import PLAIN_LOGIN_MODULE, quote_jaas
from kbroker.security.mechanism import PLAIN
from kbroker.testing.settings import HELPER

__all__ = ["BrokerUsers"]


class BrokerUsers:
    """Passwords of the users of one broker."""

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._passwords = dict(passwords)
        self._helper_password = secrets.token_urlsafe()
        if not all(name.isascii() and name and password for name, password in self._passwords.items()):
            raise UserError("Users need a name in ASCII and a password")

    def properties(self, listeners: Iterable[str]) -> dict[str, str]:
        """Returns the configs of the broker for the logins on these listeners."""
        users = {**self._passwords, HELPER: self._helper_password}
        options = " ".join(f"{quote_jaas(f'user_{name}')}={quote_jaas(password)}" for name, password in users.items())
        jaas = f"{PLAIN_LOGIN_MODULE} required {options};"
        return {
            "sasl.enabled.mechanisms": ",".join((PLAIN, *SCRAM_MECHANISMS)),
            **{f"listener.name.{name.lower()}.plain.sasl.jaas.config": jaas for name in listeners},
        }

    @property
    def helper_login(self) -> ClientLogin:
        return login_of_user(PLAIN, user=HELPER, password=self._helper_password, source="users")

    def client_settings(self, user: str, mechanism: str) -> dict[str, str]:
        """Returns the settings of a client, with the names of librdkafka. Raises UserError if the user is unknown."""
        if user not in self._passwords:
            raise UserError(f"The broker has no user {user}: create it with users={{'{user}': '...'}}")
        return {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": self._passwords[user],
        }

    async def store(self, controller: Controller) -> None:
        """Stores the SCRAM credentials of all users in the tree."""
        for user, password in self._passwords.items():
            texts = {
                name: format_credential(credential_of_password(scram, password))
                for name, scram in SCRAM_MECHANISMS.items()
            }
            await controller.update_entity_configs(
                entity_path("users", user),
                lambda current, texts=texts: {**current, **texts},  # type: ignore[misc]
                validate_only=False,
            )
