"""Every message that has a schema: what the tests of schemas and codecs go through."""

from __future__ import annotations

from kbroker.protocol.consumer_protocol import ASSIGNMENT, SUBSCRIPTION
from kbroker.protocol.group_records import RECORD_TYPES
from kbroker.protocol.headers import REQUEST_HEADER, RESPONSE_HEADER
from kbroker.protocol.registry import APIS
from kbroker.protocol.transaction_records import TRANSACTION_LOG_KEY, TRANSACTION_LOG_VALUE
from kbroker.protocol.versions import Message

API_MESSAGES: list[Message] = [message for row in APIS for message in (row.request, row.response)]
HEADERS: list[Message] = [REQUEST_HEADER, RESPONSE_HEADER]
GROUP_RECORDS: list[Message] = [message for pair in RECORD_TYPES.values() for message in pair]
TRANSACTION_RECORDS: list[Message] = [TRANSACTION_LOG_KEY, TRANSACTION_LOG_VALUE]
CONSUMER_PROTOCOL: list[Message] = [SUBSCRIPTION, ASSIGNMENT]

MESSAGES: list[Message] = [
    *API_MESSAGES,
    *HEADERS,
    *GROUP_RECORDS,
    *TRANSACTION_RECORDS,
    *CONSUMER_PROTOCOL,
]
BY_NAME: dict[str, Message] = {message.name: message for message in MESSAGES}
