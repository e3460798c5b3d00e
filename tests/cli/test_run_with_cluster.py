"""Calls of commands to a cluster, and Ctrl-C in the middle of them."""

from __future__ import annotations

import signal
from typing import Any, NoReturn

import pytest
import trio

from kbroker.cli.run_with_cluster import run_with_cluster
from kbroker.client.failures import ConnectionFailed
from kbroker.errors import UserError

NOT_USED = "127.0.0.1:1"  # the calls of these tests open no connection


def test_the_result_of_the_call_is_returned() -> None:
    async def call(_cluster: Any) -> str:
        await trio.lowlevel.checkpoint()
        return "done"

    before = signal.getsignal(signal.SIGINT)
    assert run_with_cluster(NOT_USED, call) == "done"
    assert signal.getsignal(signal.SIGINT) is before


def test_a_failure_of_the_call_is_raised_as_it_is() -> None:
    async def call(_cluster: Any) -> NoReturn:
        raise UserError("No such thing.")

    with pytest.raises(UserError, match="No such thing"):
        run_with_cluster(NOT_USED, call)


def test_an_interrupt_waits_for_the_next_checkpoint() -> None:
    """An exception between the creation of a coroutine and its await makes Python warn: it was never awaited."""
    steps = []

    async def step() -> None:
        steps.append("awaited")
        try:
            await trio.sleep_forever()
        finally:
            steps.append("cleaned up")

    async def call(_cluster: Any) -> None:
        created = step()
        signal.raise_signal(signal.SIGINT)
        await created

    with pytest.raises(KeyboardInterrupt):
        run_with_cluster(NOT_USED, call)
    assert steps == ["awaited", "cleaned up"]


def test_a_second_interrupt_ends_the_process() -> None:
    handlers = []

    async def call(_cluster: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        try:
            await trio.sleep_forever()
        finally:
            handlers.append(signal.getsignal(signal.SIGINT))

    with pytest.raises(KeyboardInterrupt):
        run_with_cluster(NOT_USED, call)
    assert handlers == [signal.SIG_DFL]


def test_a_closed_connection_without_security_is_perhaps_a_listener_that_expects_a_login() -> None:
    async def call(_cluster: Any) -> NoReturn:
        raise ConnectionFailed(NOT_USED, f"{NOT_USED} closed the connection")

    with pytest.raises(UserError) as failed:
        run_with_cluster(NOT_USED, call)
    assert str(failed.value) == (
        f"{NOT_USED} closed the connection. If the listener needs TLS or SASL, set --profile or --command-config."
    )
