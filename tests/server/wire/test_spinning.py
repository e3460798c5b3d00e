"""A watcher polls without sleeping only where that pays, and only while no other process needs the core."""

from __future__ import annotations

from kbroker.server.wire.spinning import Spinning

SOON = 0.0001
LATE = 0.0009


class Scene:
    """Watcher that waits for one request after another. The kernel takes its core away when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.switches = 0
        self.looks = 0
        self.spinning = Spinning(self._count_switches)

    def _count_switches(self) -> int:
        self.looks += 1
        return self.switches

    def wait(self, arrival: float) -> float:
        """Waits for a request that comes after `arrival` seconds. Returns how long it was spun for."""
        seconds = self.spinning.seconds(self.now)
        self.now += arrival
        if arrival <= seconds:
            self.spinning.on_hit()
            return arrival
        self.spinning.on_miss(arrival)
        return seconds

    def spun(self, *arrivals: float) -> int:
        """Returns for how many of these requests it was spun at all."""
        return sum(self.wait(arrival) > 0 for arrival in arrivals)


def test_a_new_watcher_does_not_spin() -> None:
    assert Scene().wait(SOON) == 0


def test_requests_that_follow_soon_are_waited_for_without_sleeping() -> None:
    scene = Scene()
    scene.spun(*[SOON] * 20)
    assert scene.spun(*[SOON] * 100) == 100


def test_the_time_to_spin_is_half_as_much_again_as_the_last_wait() -> None:
    scene = Scene()
    scene.spun(*[SOON] * 20)
    assert scene.spinning.seconds(scene.now) == 1.5 * SOON


def test_requests_that_take_long_are_not_spun_for() -> None:
    scene = Scene()
    scene.spun(*[SOON] * 20)
    assert scene.spun(*[LATE] * 100) <= 4
    assert scene.spun(*[LATE] * 100) == 0


def test_a_client_that_sends_two_requests_and_then_works_is_not_spun_for() -> None:
    scene = Scene()
    scene.spun(*[SOON, LATE] * 20)
    assert scene.spun(*[SOON, LATE] * 100) == 0


def test_a_single_late_request_changes_nothing() -> None:
    scene = Scene()
    scene.spun(*[SOON] * 30)
    assert scene.spun(LATE, *[SOON] * 20) == 21


def seconds_spun(scene: Scene, seconds: float, switches_s: float) -> float:
    """Lets requests follow each other soon. Each second of spinning costs the core `switches_s` times."""
    end, spun = scene.now + seconds, 0.0
    before = scene.switches
    while scene.now < end:
        spun += scene.wait(SOON)
        scene.switches = before + int(spun * switches_s)
    return spun


def test_a_watcher_whose_core_is_wanted_spins_less_and_less() -> None:
    scene = Scene()
    scene.spun(*[SOON] * 30)
    first = seconds_spun(scene, 1.0, 300)
    assert first < 0.3
    seconds_spun(scene, 10.0, 300)
    assert seconds_spun(scene, 10.0, 300) < 0.3


def test_a_few_switches_change_nothing() -> None:
    scene = Scene()
    scene.spun(*[SOON] * 30)
    assert seconds_spun(scene, 5.0, 40) > 4.9


def test_spinning_comes_back_when_the_core_is_free_again() -> None:
    scene = Scene()
    scene.spun(*[SOON] * 30)
    seconds_spun(scene, 20.0, 300)
    seconds_spun(scene, 4.0, 0)
    assert scene.spun(*[SOON] * 1000) == 1000
    assert seconds_spun(scene, 1.0, 300) < 0.3


def test_switches_while_the_watcher_did_not_spin_do_not_count() -> None:
    scene = Scene()
    scene.spun(*[SOON] * 30)
    scene.spun(*[LATE] * 30)
    scene.switches += 1000
    scene.spun(*[SOON] * 30)
    scene.now += 10.0
    scene.switches += 1000
    assert scene.spun(*[SOON] * 1000) == 1000


def test_the_counter_is_read_twenty_times_a_second() -> None:
    scene = Scene()
    scene.spun(*[SOON] * 30)
    before = scene.looks
    seconds_spun(scene, 2.0, 0)
    assert 35 <= scene.looks - before <= 41


def test_idle_connections_are_never_spun_for() -> None:
    scene = Scene()
    assert scene.spun(*[LATE] * 50) == 0
    assert scene.looks == 0
