"""Delegation tokens: lifetimes, the HMAC, and who may renew or expire a token."""

from __future__ import annotations

import hmac
from collections.abc import Callable

import pytest

from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode
from kbroker.security.delegation_token import TokenRules, split_principal, token_password

DAY, NOW = 86_400_000, 1_700_000_000_000
LONGEST = 2**63 - 1
RULES = TokenRules("the secret key", 7 * DAY, DAY)
TOKEN = RULES.issue("id", owner="User:a", requester="User:b", renewers=["User:r"], lifetime_ms=-1, now_ms=NOW)


@pytest.mark.parametrize(
    ("lifetime", "expiry", "maximum"),
    [
        (-1, DAY, 7 * DAY),
        (0, DAY, 7 * DAY),
        (1000, 1000, 1000),
        (2 * DAY, DAY, 2 * DAY),
        (LONGEST, DAY, 7 * DAY),
    ],
)
def test_a_token_expires_unless_it_is_renewed(lifetime: int, expiry: int, maximum: int) -> None:
    token = RULES.issue("id", owner="User:a", requester="User:a", renewers=[], lifetime_ms=lifetime, now_ms=NOW)
    assert (token.issue_ms, token.expiry_ms, token.max_ms) == (NOW, NOW + expiry, NOW + maximum)


def test_the_password_is_the_hmac_of_the_id() -> None:
    expected = hmac.new(b"the secret key", b"id", "sha512").digest()
    assert RULES.hmac("id") == expected
    assert token_password(b"\xff\xfe") == "//4="
    assert "secret key" not in repr(RULES)


def test_a_token_ends_after_its_expiry_not_at_it() -> None:
    assert not TOKEN.is_expired(NOW + DAY)
    assert TOKEN.is_expired(NOW + DAY + 1)


@pytest.mark.parametrize(
    ("period", "expiry"), [(-1, 2 * DAY), (0, DAY), (1000, DAY + 1000), (3 * DAY, 4 * DAY), (LONGEST, 7 * DAY)]
)
@pytest.mark.parametrize("principal", ["User:a", "User:r"])
def test_owner_and_renewers_may_renew_it_until_its_maximum(principal: str, period: int, expiry: int) -> None:
    assert RULES.renew(TOKEN, principal, period_ms=period, now_ms=NOW + DAY).expiry_ms == NOW + expiry


@pytest.mark.parametrize(("period", "expiry"), [(0, 0), (1000, 1000), (LONGEST, 7 * DAY)])
def test_owner_and_renewers_may_let_it_expire_at_another_time(period: int, expiry: int) -> None:
    expired = RULES.expire(TOKEN, "User:r", period_ms=period, now_ms=NOW)
    assert expired is not None
    assert expired.expiry_ms == NOW + expiry


def test_it_may_be_deleted_even_after_its_end() -> None:
    assert RULES.expire(TOKEN, "User:a", period_ms=-1, now_ms=NOW + 30 * DAY) is None


@pytest.mark.parametrize("change", [RULES.renew, RULES.expire])
@pytest.mark.parametrize(
    ("principal", "now", "code"),
    [
        ("User:b", NOW, ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH),  # the requester is neither
        ("User:A", NOW, ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH),
        ("Group:a", NOW, ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH),
        ("User:b", NOW + 2 * DAY, ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH),
        ("User:a", NOW + DAY + 1, ErrorCode.DELEGATION_TOKEN_EXPIRED),
    ],
)
def test_nobody_else_may_and_nobody_after_its_end(
    change: Callable[..., object], principal: str, now: int, code: ErrorCode
) -> None:
    with pytest.raises(Refusal) as refusal:
        change(TOKEN, principal, period_ms=1000, now_ms=now)
    assert refusal.value.code == code


def test_a_principal_is_split_at_its_first_colon() -> None:
    assert split_principal("User:CN=a:b") == ("User", "CN=a:b")
    assert TOKEN._replace(owner="User:a:b").user == "a:b"
