"""After any crashes, an offset is reused only in a new leader epoch."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence

import pytest

from kbroker.controller.image import PartitionState, TopicImage
from kbroker.protocol.error_codes import ErrorCode
from kbroker.replication.background_recovery import recover_unsound
from tests.log.batches import NOW, make_batch, read_headers
from tests.log.crashing import Crashed, CrashingFileSystem
from tests.replication.moving import PATHS, Broker

TOPIC = "orders"
PATH = PATHS[0]
ONE_BATCH = len(make_batch(bytes(6)))


class World:
    """A broker that is restarted on one disk, its metadata, and all records that consumers have seen."""

    def __init__(self) -> None:
        self.disk = CrashingFileSystem()
        self.late_recoveries = 0
        self.epoch = 0
        self.seen: dict[tuple[int, int], bytes] = {}
        self._written = 0

    async def live(self, *, crash_at: int | None = None) -> bool:
        """Starts the broker, serves and stops. Returns False if it crashed before the given change."""
        self.disk.changes, self.disk.crash_at = 0, crash_at
        try:
            await self._live()
        except Crashed:
            return False
        finally:
            self.disk.crash_at = None
        return True

    async def _live(self) -> None:
        broker = Broker(self.disk, self.topic(), paths=(PATH,))
        self._broker = broker
        if recovered := await broker.replicas.recover():
            await self._bump(recovered)
        self._produce()
        if any(directory.unsound for directory in broker.directories):
            await recover_unsound(broker.replicas, self._bump)
            self.late_recoveries += 1
            self._produce()
        broker.partition().log.flush(NOW)
        await broker.log_dirs.checkpoint()
        self._produce()
        self._read()
        broker.replicas.close()

    async def _bump(self, partitions: Sequence[tuple[str, int]]) -> None:
        assert partitions == [(TOPIC, 0)]
        self.disk.change()  # to die before the metadata knows is one of the ways
        self.epoch += 1
        self._broker.add(self.topic())

    def topic(self) -> TopicImage:
        return TopicImage(TOPIC, b"7" * 16, (PartitionState(1, self.epoch, (1,), (1,), 0),), {})

    def _produce(self) -> None:
        self._written += 1
        value = b"%06d" % self._written
        result = self._broker.partition().append_internal(make_batch(value), NOW)
        if result.error:
            assert result.error == ErrorCode.KAFKA_STORAGE_ERROR
            assert self._broker.partition().log_handle.needs_recovery
            return
        self._see(self.epoch, result.base_offset, value)

    def _read(self) -> None:
        log = self._broker.partition().log
        for header in read_headers(log, log.log_start_offset):
            assert (header.leader_epoch, header.base_offset) in self.seen

    def _see(self, epoch: int, offset: int, value: bytes) -> None:
        known = self.seen.setdefault((epoch, offset), value)
        assert known == value, f"offset {offset} of epoch {epoch} is {value!r} and was {known!r}"

    def at_this_point(self) -> World:
        """Copies the disk and the metadata."""
        other = copy.copy(self)
        other.disk, other.seen = copy.deepcopy(self.disk), dict(self.seen)
        return other

    def shorten(self, size: int) -> None:
        """Cuts the last bytes off the log file, as a power loss does."""
        path = f"{PATH}/{TOPIC}-0/{0:020d}.log"
        self.disk.replace(path, self.disk.read(path)[: -size or None])


def crash(world: World, how: str) -> None:
    if how == "killed":
        world.disk.kill()
    else:
        world.disk.crash(kept=0.5 if how == "torn" else 0.0)


@pytest.mark.parametrize("lost", [0, 1, ONE_BATCH])
@pytest.mark.parametrize("hows", [("killed", "power lost"), ("power lost", "power lost"), ("torn", "killed")])
async def test_no_two_crashes_give_an_offset_out_twice_in_an_epoch(hows: tuple[str, str], lost: int) -> None:
    sound = World()
    assert await sound.live()
    sound.shorten(lost)
    deaths, has_ended = 0, False
    for first in itertools.count(1):
        once = sound.at_this_point()
        has_ended = await once.live(crash_at=first)
        if has_ended:
            assert once.late_recoveries == (lost > 0)
            once.shorten(lost)
        else:
            crash(once, hows[0])
        for second in itertools.count(1):
            twice = once.at_this_point()
            if await twice.live(crash_at=second):
                break
            deaths += 1
            crash(twice, hows[1])
            assert await twice.live()
        if has_ended:
            break
    assert deaths > 200
