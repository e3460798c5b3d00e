from __future__ import annotations

from kbroker.server.wire.connection_limits import Admission, ConnectionLimits, ConnectionQuotas


def test_an_address_has_its_limit_and_an_override_replaces_it() -> None:
    limits = ConnectionLimits(max_connections_per_ip=1, max_connections_per_ip_overrides={"10.0.0.2": 2, "10.0.0.3": 0})
    quotas = ConnectionQuotas(limits)
    assert quotas.admit("10.0.0.1", 0) is Admission.ADMITTED
    assert quotas.admit("10.0.0.1", 0) is Admission.TOO_MANY_FROM_ADDRESS
    assert [quotas.admit("10.0.0.2", 0) for _ in range(3)] == [
        Admission.ADMITTED,
        Admission.ADMITTED,
        Admission.TOO_MANY_FROM_ADDRESS,
    ]
    assert quotas.admit("10.0.0.3", 0) is Admission.TOO_MANY_FROM_ADDRESS
    quotas.leave("10.0.0.1")
    assert quotas.admit("10.0.0.1", 0) is Admission.ADMITTED
    assert quotas.count == 3


def test_all_together_have_a_limit() -> None:
    quotas = ConnectionQuotas(ConnectionLimits(max_connections=2))
    assert quotas.admit("a", 0) is quotas.admit("b", 0) is Admission.ADMITTED
    assert quotas.must_wait(0)
    assert quotas.admit("c", 0) is Admission.FULL
    quotas.leave("a")
    assert quotas.admit("c", 0) is Admission.ADMITTED


def test_limits_that_change_hold_for_whoever_comes_next() -> None:
    quotas = ConnectionQuotas(ConnectionLimits(max_connections=1))
    assert quotas.admit("a", 0) is Admission.ADMITTED
    quotas.set_limits(ConnectionLimits(max_connections=3, max_connections_per_ip=1))
    assert not quotas.must_wait(0)
    assert quotas.admit("a", 0) is Admission.TOO_MANY_FROM_ADDRESS
    assert quotas.admit("b", 0) is Admission.ADMITTED
    quotas.set_limits(ConnectionLimits(max_connections=1))
    assert quotas.must_wait(0)
    assert quotas.count == 2


def test_connections_that_come_too_fast_have_to_wait() -> None:
    quotas = ConnectionQuotas(ConnectionLimits(max_connection_rate=2))
    for _ in range(20):
        assert not quotas.must_wait(0)
        assert quotas.admit("a", 0) is Admission.ADMITTED
    assert not quotas.must_wait(0)
    assert quotas.admit("b", 0) is Admission.ADMITTED
    assert quotas.must_wait(0.4)
    assert not quotas.must_wait(0.6)
    quotas.admit("b", 0.6)
    assert quotas.must_wait(0.6)
    quotas.set_limits(ConnectionLimits())
    assert not quotas.must_wait(0.6)


def test_an_address_that_comes_too_fast_is_refused_and_others_are_not() -> None:
    quotas = ConnectionQuotas(ConnectionLimits())
    quotas.set_address_rate("10.0.0.1", 1)
    quotas.set_address_rate("", 2)
    admissions = {address: [quotas.admit(address, 0) for _ in range(30)] for address in ("10.0.0.1", "10.0.0.2")}
    assert admissions["10.0.0.1"].count(Admission.ADMITTED) == 10
    assert admissions["10.0.0.2"].count(Admission.ADMITTED) == 20
    assert quotas.count == 30
    assert quotas.admit("10.0.0.1", 1) is Admission.TOO_FAST_FROM_ADDRESS
    assert quotas.admit("10.0.0.1", 12) is Admission.ADMITTED
    quotas.set_address_rate("10.0.0.1", None)
    quotas.set_address_rate("", None)
    assert quotas.admit("10.0.0.1", 12) is Admission.ADMITTED
