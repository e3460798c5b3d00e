from __future__ import annotations

from kbroker.server.connection_limits import Admission, ConnectionLimits, ConnectionQuotas


def test_an_address_has_its_limit_and_an_override_replaces_it() -> None:
    limits = ConnectionLimits(max_connections_per_ip=1, max_connections_per_ip_overrides={"10.0.0.2": 2, "10.0.0.3": 0})
    quotas = ConnectionQuotas(limits)
    assert quotas.admit("10.0.0.1") is Admission.ADMITTED
    assert quotas.admit("10.0.0.1") is Admission.TOO_MANY_FROM_ADDRESS
    assert [quotas.admit("10.0.0.2") for _ in range(3)] == [
        Admission.ADMITTED,
        Admission.ADMITTED,
        Admission.TOO_MANY_FROM_ADDRESS,
    ]
    assert quotas.admit("10.0.0.3") is Admission.TOO_MANY_FROM_ADDRESS
    quotas.leave("10.0.0.1")
    assert quotas.admit("10.0.0.1") is Admission.ADMITTED
    assert quotas.count == 3


def test_all_together_have_a_limit() -> None:
    quotas = ConnectionQuotas(ConnectionLimits(max_connections=2))
    assert quotas.admit("a") is quotas.admit("b") is Admission.ADMITTED
    assert quotas.is_full()
    assert quotas.admit("c") is Admission.FULL
    quotas.leave("a")
    assert quotas.admit("c") is Admission.ADMITTED
