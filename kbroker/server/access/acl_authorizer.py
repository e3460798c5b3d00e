"""Authorizer over the ACLs of the metadata tree, for `authorizer.class.name`. Writes the audit lines."""

from __future__ import annotations

import logging
from typing import Final

from kbroker.clock import Clock
from kbroker.security.acls.audit import AuditLimit, audit_line
from kbroker.security.acls.decision import Access
from kbroker.security.acls.index import AclIndex

__all__ = ["AclAuthorizer"]

# Kafka's name of the logger: operators send its lines to a file of their own.
logger = logging.getLogger("kafka.authorizer.logger")

_LINES_PER_SECOND: Final = 100


class AclAuthorizer:
    allows_all = False

    def __init__(self, index: AclIndex, clock: Clock) -> None:
        self.allows = index.allows  # the method itself: a call of it is on the hot path
        self.allows_any = index.allows_any
        self._clock = clock
        self._limit = AuditLimit(_LINES_PER_SECOND)

    @property
    def logs_all(self) -> bool:
        return logger.isEnabledFor(logging.DEBUG)

    def audit(self, access: Access, api_name: str, *, is_allowed: bool) -> None:
        if is_allowed:
            if self.logs_all:
                logger.debug("%s", audit_line(access, api_name, is_allowed=True))
            return
        if not logger.isEnabledFor(logging.INFO):
            return
        left_out = self._limit.take(self._clock.monotonic())
        if left_out is None:
            return
        if left_out:
            logger.info("%d more denied requests were not logged", left_out)
        logger.info("%s", audit_line(access, api_name, is_allowed=False))
