"""Which clients are throttled, and for how long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.rate_window import RateWindow
from kbroker.server.quotas.quota_rates import CONSUME, MUTATION, PRODUCE, QuotaRates


def rates(quotas: dict[str, dict[str, str]]) -> QuotaRates:
    made = QuotaRates()
    for entity, texts in quotas.items():
        made.set_quotas(entity, texts)
    return made


def of(rate: int) -> dict[str, str]:
    return {PRODUCE: str(rate)}


def test_a_burst_within_the_window_is_free() -> None:
    window = RateWindow(11, 1)
    window.record(1000, 0)
    assert window.excess_ms(100, 0) == 0
    window.record(1, 0.5)
    assert window.excess_ms(100, 0.5) == 0


def test_beyond_the_window_the_wait_brings_the_rate_down_to_the_limit() -> None:
    window = RateWindow(11, 1)
    window.record(2000, 0)
    assert window.excess_ms(100, 0) == 10_000  # 2000 in 10 s, where 1000 are allowed
    assert window.excess_ms(100, 5) == 10_000
    assert window.excess_ms(100, 11.5) == 0
    assert window.is_idle(11.5)


def test_a_steady_rate_at_the_limit_is_never_slowed_down() -> None:
    window = RateWindow(11, 1)
    waits = []
    for tenth in range(400):
        window.record(10, tenth / 10)
        waits.append(window.excess_ms(100, tenth / 10))
    assert max(waits) <= 200  # the sample that has just begun


def test_a_steady_rate_of_twice_the_limit_is_slowed_down() -> None:
    window = RateWindow(11, 1)
    for tenth in range(200):
        window.record(20, tenth / 10)
    assert window.excess_ms(100, 20) > 5000


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 1e6)), max_size=30), st.floats(1, 1e6))
def test_a_client_that_waits_as_told_stays_near_its_limit(uses: list[tuple[float, float]], limit: float) -> None:
    window = RateWindow(11, 1)
    now = used = 0.0
    for pause, amount in uses:
        window.record(amount, now)
        wait = window.excess_ms(limit, now) / 1000
        assert wait >= 0
        now += pause + wait
        used += amount
    if uses:
        largest = max(amount for _, amount in uses)
        assert used <= limit * (now + 12) + largest * 12


@pytest.mark.parametrize(
    ("quotas", "limited"),
    [
        ({"users/alice/clients/app": of(1)}, {("alice", "app")}),
        ({"users/alice/clients/<default>": of(1)}, {("alice", "app"), ("alice", "web")}),
        ({"users/alice": of(1)}, {("alice", "app"), ("alice", "web")}),
        ({"users/<default>/clients/app": of(1)}, {("alice", "app"), ("bob", "app")}),
        ({"users/<default>": of(1)}, {("alice", "app"), ("alice", "web"), ("bob", "app")}),
        ({"clients/app": of(1)}, {("alice", "app"), ("bob", "app")}),
        ({"clients/<default>": of(1)}, {("alice", "app"), ("alice", "web"), ("bob", "app")}),
        ({"clients/<default>": of(1), "users/alice": of(10**9)}, {("bob", "app")}),
        ({"users/alice": of(1), "users/alice/clients/web": of(10**9)}, {("alice", "app")}),
        ({"users/alice": {CONSUME: "1"}, "ips/<default>": of(1)}, set()),
    ],
)
def test_the_most_exact_quota_counts(quotas: dict[str, dict[str, str]], limited: set[tuple[str, str]]) -> None:
    made = rates(quotas)
    clients = [("alice", "app"), ("alice", "web"), ("bob", "app")]
    assert {client for client in clients if made.charge(PRODUCE, *client, 100_000, 0) > 0} == limited


def test_a_users_clients_share_the_users_quota_and_others_do_not() -> None:
    made = rates({"users/alice": of(100), "clients/web": of(100)})
    assert made.charge(PRODUCE, "alice", "app", 900, 0) == 0
    assert made.charge(PRODUCE, "alice", "web", 900, 0) > 0
    assert made.charge(PRODUCE, "bob", "web", 900, 0) == 0
    assert made.charge(PRODUCE, "carol", "web", 900, 0) > 0
    assert made.charge(CONSUME, "alice", "app", 10**9, 0) == 0


def test_a_quota_that_changes_counts_from_then_on() -> None:
    made = rates({"users/alice": of(10**9)})
    assert made.charge(PRODUCE, "alice", "app", 5000, 0) == 0
    made.set_quotas("users/alice", of(100))
    assert made.charge(PRODUCE, "alice", "app", 1, 0) > 0
    made.set_quotas("users/alice", {})
    assert made.is_empty
    assert made.charge(PRODUCE, "alice", "app", 10**9, 0) == 0


def test_names_are_found_as_they_are_kept() -> None:
    made = rates({"users/CN%3Da%20b": of(1)})
    assert made.charge(PRODUCE, "CN=a b", "app", 1000, 0) > 0


def test_idle_windows_are_forgotten() -> None:
    made = rates({"clients/<default>": of(10)})
    made.charge(PRODUCE, "alice", "app", 1000, 0)
    made.forget_idle(5)
    assert len(made._windows) == 1
    made.forget_idle(60)
    assert made._windows == {}


def test_a_single_window_counts_as_a_moment_at_least() -> None:
    window = RateWindow(1, 1)
    window.record(5, 0)
    assert window.excess_ms(1, 0) > 0


def test_a_client_without_a_name_has_only_its_users_quota() -> None:
    made = rates({"clients/<default>": of(1), "users/alice/clients/<default>": of(1), "users/bob": of(1)})
    assert made.charge(PRODUCE, "alice", "", 100_000, 0) == 0
    assert made.charge(PRODUCE, "bob", "", 100_000, 0) > 0


def test_changes_of_topics_may_come_in_a_burst_and_a_debt_is_waited_for() -> None:
    made = rates({"clients/app": {MUTATION: "2"}})

    def strict(count: int, now: float) -> int:
        return made.charge_mutations("alice", "app", count, now, is_strict=True)

    assert strict(22, 0) == 0
    assert strict(4, 0) == 0  # the bucket is empty, but not in debt
    assert strict(1, 0) == 2000
    assert strict(1, 1) == 1000  # refused: it costs nothing
    assert strict(1, 2) == 0
    assert made.charge_mutations("alice", "app", 3, 2, is_strict=False) == 2000
    assert made.charge_mutations("alice", "web", 10**6, 2, is_strict=False) == 0
    made.forget_idle(3)
    assert strict(1, 3) == 1000
    made.forget_idle(60)
    assert made._buckets == {}


def test_what_was_not_sent_is_not_charged() -> None:
    made = rates({"clients/app": {CONSUME: "100"}})
    assert made.burst(CONSUME, "alice", "app") == 1000
    assert made.burst(CONSUME, "alice", "web") is None
    assert made.charge(CONSUME, "alice", "app", 2000, 0) > 0
    made.charge(CONSUME, "alice", "app", -2000, 0)
    assert made.charge(CONSUME, "alice", "app", 900, 0) == 0


def test_idle_windows_of_many_clients_are_forgotten_a_part_at_a_time() -> None:
    made = rates({"users/<default>": of(10**9)})
    for number in range(3000):
        made.charge(PRODUCE, f"user-{number}", "", 1, 0)
    sizes = []
    for _ in range(7):
        made.forget_idle(10**6)
        sizes.append(len(made._windows))
    assert sizes == [2500, 2000, 1500, 1000, 500, 0, 0]
