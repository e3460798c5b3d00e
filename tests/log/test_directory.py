from __future__ import annotations

import base64
import errno

import pytest

from kbroker.errors import RecoveryNeeded, StorageFailure, UserError
from kbroker.log.directory import DataDirectory
from kbroker.log.files.directory_metadata import deleted_name, split_partition_name
from kbroker.log.files.file_cache import FileCache
from kbroker.log.files.file_slice import FileSlice
from kbroker.log.files.filesystem import FileSystem
from kbroker.log.log_config import LogConfig
from kbroker.testing.faulty_filesystem import FaultyFileSystem
from tests.log.batches import NOW, append, make_batch, read_values

Place = tuple[FileSystem, str]
TOPIC_ID = bytes(range(16))


def open_directory(place: Place, *, broker_id: int = 0, cluster_id: str | None = "c") -> DataDirectory:
    filesystem, path = place
    return DataDirectory.open(FileCache(filesystem), path, broker_id=broker_id, cluster_id=cluster_id)


def test_a_new_directory_has_meta_properties_and_a_format_file(place: Place) -> None:
    filesystem, path = place
    directory = open_directory(place)
    assert filesystem.read(f"{path}/meta.properties") == b"#\nbroker.id=0\ncluster.id=c\nversion=0\n"
    assert filesystem.read(f"{path}/kbroker.format") == b"1\n"
    assert directory.cluster_id == "c"
    assert directory.was_clean  # there is nothing that a crash could have torn
    directory.close(NOW)
    assert filesystem.exists(f"{path}/.kafka_cleanshutdown")


def test_the_cluster_id_can_be_set_later(place: Place) -> None:
    filesystem, path = place
    directory = open_directory(place, cluster_id=None)
    assert b"cluster.id" not in filesystem.read(f"{path}/meta.properties")
    directory.set_cluster_id("late")
    assert directory.cluster_id == "late"
    with pytest.raises(UserError, match="belongs to"):
        directory.set_cluster_id("other")
    directory.release()


def test_a_second_broker_is_refused(place: Place) -> None:
    directory = open_directory(place)
    with pytest.raises(UserError, match="Failed to acquire lock on file"):
        open_directory(place)
    directory.release()
    open_directory(place).release()


@pytest.mark.parametrize(("broker_id", "cluster_id"), [(1, "c"), (0, "d")])
def test_another_brokers_or_clusters_directory_is_refused(place: Place, broker_id: int, cluster_id: str) -> None:
    open_directory(place).close(NOW)
    with pytest.raises(UserError, match="belongs to"):
        open_directory(place, broker_id=broker_id, cluster_id=cluster_id)
    open_directory(place, cluster_id=None).close(NOW)


@pytest.mark.parametrize("content", [b"2\n", b"", b"one\n"])
def test_a_newer_format_is_refused_and_left_alone(place: Place, content: bytes) -> None:
    filesystem, path = place
    filesystem.replace(f"{path}/kbroker.format", content)
    filesystem.replace(f"{path}/.kafka_cleanshutdown", b"")
    with pytest.raises(UserError, match="format"):
        open_directory(place)
    assert filesystem.exists(f"{path}/.kafka_cleanshutdown")
    filesystem.replace(f"{path}/kbroker.format", b"1\n")
    open_directory(place).release()


def test_a_directory_that_cannot_be_written_raises_storage_failure_and_is_unlocked(
    faulty: FaultyFileSystem,
) -> None:
    faulty.make_directory("/data")
    faulty.free_bytes = 0
    with pytest.raises(StorageFailure):
        open_directory((faulty, "/data"))
    faulty.free_bytes = None
    open_directory((faulty, "/data"))


def test_logs_are_found_again_with_their_offsets_after_a_clean_stop(place: Place) -> None:
    filesystem, path = place
    directory = open_directory(place)
    log = directory.create_log("a.b-c", 3, TOPIC_ID, LogConfig()).open()
    for number in range(5):
        append(log, make_batch(b"%d" % number))
    log.set_high_watermark(4)
    log.delete_records_before(2)
    directory.close(NOW)
    assert filesystem.read(f"{path}/recovery-point-offset-checkpoint") == b"0\n1\na.b-c 3 5\n"
    assert filesystem.read(f"{path}/replication-offset-checkpoint") == b"0\n1\na.b-c 3 4\n"
    assert filesystem.read(f"{path}/log-start-offset-checkpoint") == b"0\n1\na.b-c 3 2\n"
    again = open_directory(place)
    assert again.was_clean
    assert not filesystem.exists(f"{path}/.kafka_cleanshutdown")
    assert again.partitions == {("a.b-c", 3)}
    assert again.topic_id("a.b-c", 3) == TOPIC_ID
    reopened = again.open_log("a.b-c", 3, LogConfig())
    assert reopened.opened is None
    log = reopened.open()
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (2, 4, 5)
    assert again.create_log("a.b-c", 3, TOPIC_ID, LogConfig()) is reopened
    again.close(NOW)


def test_partition_metadata_has_kafkas_format(place: Place) -> None:
    filesystem, path = place
    directory = open_directory(place)
    directory.create_log("t", 0, TOPIC_ID, LogConfig())
    encoded = base64.urlsafe_b64encode(TOPIC_ID).rstrip(b"=")
    assert filesystem.read(f"{path}/t-0/partition.metadata") == b"version: 0\ntopic_id: " + encoded + b"\n"
    filesystem.replace(f"{path}/t-0/partition.metadata", b"version: 0\n")
    assert directory.topic_id("t", 0) is None
    directory.create_log("u", 0, None, LogConfig())
    assert directory.topic_id("u", 0) is None
    directory.release()


def test_without_the_clean_marker_logs_are_recovered(place: Place) -> None:
    filesystem, path = place
    directory = open_directory(place)
    log = directory.create_log("t", 0, TOPIC_ID, LogConfig()).open()
    for number in range(5):
        append(log, make_batch(b"%d" % number))
    log.flush(NOW)
    directory.checkpoints.write([directory.checkpoints.collect_recovery_points(directory.logs)])
    append(log, make_batch(b"x"))
    log.close_files()
    directory.release()
    file = filesystem.open(f"{path}/t-0/{0:020d}.log")
    file.write_at([b"torn"], file.size())
    file.close()
    again = open_directory(place)
    assert not again.was_clean
    reopened = again.open_log("t", 0, LogConfig())
    with pytest.raises(RecoveryNeeded):
        reopened.open()
    assert again.unsound == {("t", 0)}
    log = reopened.recover()
    assert len(read_values(log)) == 6
    assert log.was_shortened
    again.close(NOW)
    assert open_directory(place).was_clean


def test_a_log_that_was_never_recovered_keeps_the_directory_unclean(place: Place) -> None:
    crash_with_two_logs(place)
    again = open_directory(place)
    again.open_log("t", 0, LogConfig()).recover()
    again.open_log("t", 1, LogConfig())
    again.close(NOW)
    assert not open_directory(place).was_clean


def test_a_log_of_no_topic_does_not_keep_the_directory_unclean_but_needs_recovery_itself(place: Place) -> None:
    crash_with_two_logs(place)
    again = open_directory(place)
    again.open_log("t", 0, LogConfig()).recover()
    again.close(NOW)
    for _restart in range(2):
        again = open_directory(place)
        assert again.was_clean
        assert not again.open_log("t", 0, LogConfig()).needs_recovery
        again.close(NOW)
    again = open_directory(place)
    adopted = again.open_log("t", 1, LogConfig())
    assert adopted.needs_recovery
    adopted.recover()
    again.close(NOW)
    again = open_directory(place)
    assert not again.open_log("t", 1, LogConfig()).needs_recovery
    again.release()


def test_a_sound_log_of_no_topic_stays_sound(place: Place) -> None:
    directory = open_directory(place)
    for partition in range(2):
        append(directory.create_log("t", partition, TOPIC_ID, LogConfig()).open(), make_batch(b"a"))
    directory.close(NOW)
    again = open_directory(place)
    again.open_log("t", 0, LogConfig())
    again.close(NOW)
    again = open_directory(place)
    assert not again.open_log("t", 1, LogConfig()).needs_recovery
    again.release()


def crash_with_two_logs(place: Place) -> None:
    directory = open_directory(place)
    for partition in range(2):
        append(directory.create_log("t", partition, TOPIC_ID, LogConfig()).open(), make_batch(b"a"))
    for log in directory:
        log.close_files()
    directory.release()


def test_a_clean_stop_with_many_unflushed_logs_notices_a_failed_fsync(faulty: FaultyFileSystem) -> None:
    faulty.make_directory("/data")
    directory = open_directory((faulty, "/data"))
    for partition in range(40):
        append(directory.create_log("t", partition, TOPIC_ID, LogConfig()).open(), make_batch(b"a"))
    faulty.sync_error = errno.EIO
    with pytest.raises(StorageFailure):
        directory.close(NOW)
    faulty.kill()
    faulty.sync_error = None
    assert not open_directory((faulty, "/data")).was_clean


def test_a_deleted_partition_is_renamed_at_once_and_purged_when_it_is_not_read_any_more(place: Place) -> None:
    filesystem, path = place
    directory = open_directory(place)
    log = directory.create_log("t", 0, TOPIC_ID, LogConfig()).open()
    append(log, make_batch(b"a"))
    slice_ = log.read(0, 1000)
    assert isinstance(slice_, FileSlice)
    directory.delete_log("t", 0, unique="0123abcd")
    assert filesystem.list_directories(path) == ["t-0.0123abcd-delete"]
    assert directory.partitions == frozenset()
    assert directory.purge_deleted() == 1
    assert len(slice_.read()) == slice_.size
    slice_.release()
    fresh = directory.create_log("t", 0, TOPIC_ID, LogConfig())
    assert append(fresh.open(), make_batch(b"b")) == 0
    assert directory.purge_deleted() == 0
    assert filesystem.list_directories(path) == ["t-0"]
    directory.close(NOW)


def test_partitions_deleted_before_a_crash_are_purged_after_it(place: Place) -> None:
    filesystem, path = place
    directory = open_directory(place)
    directory.create_log("t", 0, TOPIC_ID, LogConfig())
    directory.delete_log("t", 0, unique="ff")
    directory.release()
    again = open_directory(place)
    assert again.partitions == frozenset()
    assert again.purge_deleted() == 0
    assert filesystem.list_directories(path) == []
    again.release()


def test_directory_names() -> None:
    assert split_partition_name("a-b-3") == ("a-b", 3)
    assert split_partition_name("a") is None
    assert split_partition_name("a-x") is None
    assert split_partition_name("a-03") is None
    long = deleted_name("x" * 249, 12345, unique="0" * 32)
    assert len(long) == 255
    assert long.endswith("x-12345." + "0" * 32 + "-delete")


def test_checkpoints_have_the_offsets_of_the_time_when_they_were_collected(place: Place) -> None:
    filesystem, path = place
    directory = open_directory(place)
    log = directory.create_log("t", 0, TOPIC_ID, LogConfig()).open()
    append(log, make_batch(b"a"))
    collected = directory.checkpoints.collect(directory.logs)
    append(log, make_batch(b"b"))
    directory.checkpoints.write(collected)
    assert filesystem.read(f"{path}/replication-offset-checkpoint") == b"0\n1\nt 0 1\n"
    directory.close(NOW)


def test_a_clean_stop_during_a_flush_fsyncs_everything(faulty: FaultyFileSystem) -> None:
    faulty.make_directory("/data")
    directory = open_directory((faulty, "/data"))
    log = directory.create_log("t", 0, TOPIC_ID, LogConfig()).open()
    append(log, make_batch(b"a"))
    job = log.begin_flush()
    assert job is not None
    append(log, make_batch(b"b"))
    directory.close(NOW)
    faulty.crash()
    assert open_directory((faulty, "/data")).open_log("t", 0, LogConfig()).open().log_end_offset == 2


def test_many_dirty_logs_are_written_out_together_before_their_fsyncs(
    faulty: FaultyFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsyncs_before: list[int] = []
    monkeypatch.setattr(faulty, "sync_all", lambda: fsyncs_before.append(faulty.syncs))
    faulty.make_directory("/data")
    directory = open_directory((faulty, "/data"))
    for partition in range(40):
        append(directory.create_log("t", partition, TOPIC_ID, LogConfig()).open(), make_batch(b"a"))
    directory.close(NOW)
    assert fsyncs_before == [0]
    faulty.crash()
    again = open_directory((faulty, "/data"))
    assert again.was_clean
    assert all(again.open_log("t", partition, LogConfig()).open().log_end_offset == 1 for partition in range(40))


def test_cleaner_offsets_are_checkpointed_and_removed_with_their_partition(place: Place) -> None:
    filesystem, path = place
    checkpoint = f"{path}/cleaner-offset-checkpoint"
    directory = open_directory(place)
    logs = [directory.create_log(name, 0, TOPIC_ID, LogConfig()).open() for name in ("a", "b", "never")]
    directory.checkpoints.write(directory.checkpoints.collect(directory.logs))
    assert not filesystem.exists(checkpoint)
    logs[0].cleaner_offset, logs[1].cleaner_offset = 7, 9
    directory.checkpoints.write(directory.checkpoints.collect(directory.logs))
    assert filesystem.read(checkpoint) == b"0\n2\na 0 7\nb 0 9\n"
    assert directory.checkpoints.collect_cleaner_offsets(directory.logs) == []
    directory.close(NOW)
    again = open_directory(place)
    assert again.open_log("a", 0, LogConfig()).cleaner_offset == 7
    assert again.open_log("never", 0, LogConfig()).cleaner_offset is None
    again.delete_log("a", 0, unique="f" * 32)
    assert again.create_log("a", 0, TOPIC_ID, LogConfig()).cleaner_offset is None
    again.close(NOW)
    assert filesystem.read(checkpoint) == b"0\n1\nb 0 9\n"


def test_a_log_that_end_offset_on_disk_truncated_needs_recovery(place: Place) -> None:
    filesystem, path = place
    directory = open_directory(place)
    append(directory.create_log("t", 0, TOPIC_ID, LogConfig()).open(), make_batch(b"a"))
    directory.close(NOW)
    file = filesystem.open(f"{path}/t-0/{0:020d}.log")
    file.write_at([b"torn"], file.size())
    file.close()
    again = open_directory(place)
    assert again.end_offset_on_disk("t", 0) == 1
    assert again.open_log("t", 0, LogConfig()).needs_recovery
    again.release()
