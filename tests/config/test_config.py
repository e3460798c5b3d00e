from __future__ import annotations

import html
import re
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.config.broker import BROKER_CONFIGS, BrokerConfig, validate_dynamic_configs
from kbroker.config.describe import describe_broker_configs, describe_default_broker_configs, describe_topic_configs
from kbroker.config.endpoints import Endpoint
from kbroker.config.key import ConfigEntry, ConfigKey, ConfigSource, ConfigType, format_value, keys_of
from kbroker.config.properties import parse_properties
from kbroker.config.topic import TOPIC_CONFIGS, topic_config, validate_topic_configs
from kbroker.config.zookeeper import ZooKeeperConfig
from kbroker.errors import UserError

DAY_MS = 86_400_000


def broker(**properties: str) -> BrokerConfig:
    return BrokerConfig.from_properties({name.replace("_", "."): text for name, text in properties.items()})


def test_a_properties_file_is_read_as_java_reads_it() -> None:
    text = (
        "# a comment\n"
        "! another\n"
        "\n"
        "num.partitions=3\r\n"
        "  log.dir = /data/kafka logs  \n"
        "compression.type: lz4\n"
        "broker.id 7\n"
        "empty=\n"
        "alone\n"
        "listeners=PLAINTEXT://a:1,\\\n"
        "    SSL://b:2\n"
        "# no continuation in a comment \\\n"
        "with\\=sign=a\\tb\\\\c\\u0041\n"
        "twice=1\n"
        "twice=2"
    )
    assert parse_properties(text) == {
        "num.partitions": "3",
        "log.dir": "/data/kafka logs  ",
        "compression.type": "lz4",
        "broker.id": "7",
        "empty": "",
        "alone": "",
        "listeners": "PLAINTEXT://a:1,SSL://b:2",
        "with=sign": "a\tb\\cA",
        "twice": "2",
    }


def test_a_broken_escape_is_the_users_error() -> None:
    with pytest.raises(UserError, match="hex digits"):
        parse_properties("a=\\u00zz")


@given(st.text())
def test_any_text_parses_or_is_the_users_error(text: str) -> None:
    try:
        parse_properties(text)
    except UserError:
        assert "\\u" in text


def test_defaults_are_kafkas() -> None:
    config = broker()
    assert config.num_partitions == 1
    assert config.message_max_bytes == 1_048_588
    assert config.socket_request_max_bytes == 104_857_600
    assert config.queued_max_request_bytes == 256 * 1024 * 1024
    assert config.log_retention_ms is None
    assert config.auto_create_topics_enable is True
    assert config.kbroker_record_validation == "auto"
    assert config.warnings == ()


def test_values_are_typed_and_trimmed() -> None:
    config = broker(num_partitions=" 12 ", auto_create_topics_enable="FALSE", log_dirs="/a, /b", broker_rack="r1")
    assert config.num_partitions == 12
    assert config.auto_create_topics_enable is False
    assert config.data_dirs == ("/a", "/b")
    assert config.broker_rack == "r1"
    assert broker(log_dir="/c").data_dirs == ("/c",)


def test_configs_are_read_only() -> None:
    config = broker()
    with pytest.raises(AttributeError, match=r"BrokerConfig\.num_partitions is read-only: change .* with set_dynamic"):
        config.num_partitions = 2
    with pytest.raises(AttributeError, match=r"TopicConfig\.retention_ms is read-only"):
        config.topic_defaults.retention_ms = 2


def test_a_dynamic_update_replaces_the_topic_defaults_and_leaves_the_old_object_as_it_was() -> None:
    config = broker()
    before = config.topic_defaults
    config.set_dynamic(own={}, defaults={"log.retention.ms": "5"})
    assert (config.log_retention_ms, config.topic_defaults.retention_ms) == (5, 5)
    assert before.retention_ms == 7 * 24 * 3_600_000


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("num.partitions", "0", "num.partitions=0 must be at least 1"),
        ("num.partitions", "many", "num.partitions=many must be a 32-bit integer"),
        ("num.partitions", "1_000", "must be a 32-bit integer"),
        ("num.partitions", "٣", "must be a 32-bit integer"),
        ("num.partitions", "2147483648", "must be a 32-bit integer"),
        ("num.partitions", "", "must be a 32-bit integer"),
        ("auto.create.topics.enable", "yes", "must be true or false"),
        ("compression.type", "brotli", "must be one of"),
        ("log.cleanup.policy", "delete,shred", "must be a list of compact, delete"),
        ("num.io.threads", "0", "num.io.threads=0 must be at least 1"),
        ("log.cleaner.min.cleanable.ratio", "1.5", "must be between 0 and 1"),
        ("log.cleaner.min.cleanable.ratio", "half", "must be a number"),
        ("offsets.topic.replication.factor", "40000", "must be a 16-bit integer"),
        ("kbroker.record.validation", "none", "must be one of auto, header, full"),
    ],
)
def test_a_bad_value_is_told_in_one_line(name: str, text: str, problem: str) -> None:
    with pytest.raises(UserError) as error:
        BrokerConfig.from_properties({name: text})
    assert problem in str(error.value)
    assert "\n" not in str(error.value)


def test_an_unknown_name_gets_a_warning_with_the_nearest_one() -> None:
    config = BrokerConfig.from_properties({"num.partition": "3", "zzz": "1", "num.io.threads": "8", "node.id": "5"})
    assert config.warnings == (
        "num.partition is not a known config; did you mean num.partitions?",
        "zzz is not a known config",
        "num.io.threads has no effect in kbroker",
    )
    assert config.broker_id == 5
    assert config.num_partitions == 1


def test_listeners_are_named_and_mapped_to_protocols() -> None:
    config = BrokerConfig.from_properties(
        {
            "listeners": "internal://:9092, EXTERNAL://0.0.0.0:9093,V6://[::1]:0",
            "advertised.listeners": "INTERNAL://inside:19092,EXTERNAL://outside:19093,V6://[fe80::1]:9094",
            "listener.security.protocol.map": "INTERNAL:PLAINTEXT,EXTERNAL:SSL,V6:PLAINTEXT",
            "inter.broker.listener.name": "EXTERNAL",
        }
    )
    assert config.endpoints == (
        Endpoint("INTERNAL", "", 9092, "PLAINTEXT"),
        Endpoint("EXTERNAL", "0.0.0.0", 9093, "SSL"),
        Endpoint("V6", "::1", 0, "PLAINTEXT"),
    )
    assert [str(endpoint) for endpoint in config.advertised_endpoints] == [
        "INTERNAL://inside:19092",
        "EXTERNAL://outside:19093",
        "V6://[fe80::1]:9094",
    ]
    assert config.inter_broker_endpoint.port == 19093


def test_listeners_are_advertised_as_they_are_unless_told_otherwise() -> None:
    config = broker(listeners="PLAINTEXT://127.0.0.1:0")
    assert config.advertised_endpoints == config.endpoints == (Endpoint("PLAINTEXT", "127.0.0.1", 0),)
    assert config.inter_broker_endpoint == config.endpoints[0]


def test_by_default_only_this_machine_is_listened_to() -> None:
    assert [endpoint.host for endpoint in broker().endpoints] == ["127.0.0.1"]


def test_the_controllers_listener_of_a_kraft_file_is_left_out() -> None:
    config = BrokerConfig.from_properties(
        {
            "listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
            "controller.listener.names": "CONTROLLER",
        }
    )
    assert [endpoint.name for endpoint in config.endpoints] == ["PLAINTEXT"]


@pytest.mark.parametrize(
    ("properties", "problem"),
    [
        ({"listeners": ""}, "listeners is empty"),
        ({"listeners": "localhost:9092"}, "expected NAME://HOST:PORT"),
        ({"listeners": "PLAINTEXT://localhost"}, "expected NAME://HOST:PORT"),
        ({"listeners": "PLAINTEXT://localhost:99999"}, "expected NAME://HOST:PORT"),
        ({"listeners": "PLAINTEXT://a:1,PLAINTEXT://b:2"}, "PLAINTEXT twice"),
        ({"listeners": "PLAINTEXT://a:1,SSL://a:1"}, "must have a different address"),
        ({"listeners": "INSIDE://a:1"}, "No security protocol defined for listener INSIDE"),
        ({"listener.security.protocol.map": "A:B"}, "expected NAME:PROTOCOL"),
        ({"listeners": "PLAINTEXT://0.0.0.0:1"}, "set advertised.listeners"),
        ({"listeners": "PLAINTEXT://a:1", "advertised.listeners": "SSL://a:1"}, "listeners has no listener SSL"),
        ({"inter.broker.listener.name": "SSL"}, "must be a listener name defined in advertised.listeners"),
    ],
)
def test_listeners_that_cannot_work_are_refused(properties: dict[str, str], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        BrokerConfig.from_properties(properties)


def test_several_listeners_may_ask_for_any_port() -> None:
    assert len(broker(listeners="PLAINTEXT://a:0,SSL://a:0").endpoints) == 2


def test_a_topic_falls_back_to_the_broker_and_then_to_the_default() -> None:
    defaults = broker(log_segment_bytes="1000000", message_max_bytes="5000")
    config = topic_config(defaults, {"segment.bytes": "2000000"})
    assert config.segment_bytes == 2_000_000
    assert config.max_message_bytes == 5000
    assert config.retention_ms == 7 * DAY_MS
    assert config.cleanup_policy == ("delete",)
    assert topic_config(defaults, {}) is topic_config(defaults, {})
    assert topic_config(defaults, {}).segment_bytes == 1_000_000


@pytest.mark.parametrize(
    ("properties", "retention_ms"),
    [
        ({"log.retention.hours": "2"}, 7_200_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 180_000),
        ({"log.retention.ms": "5", "log.retention.hours": "2", "log.retention.minutes": "3"}, 5),
        ({"log.retention.hours": "-1"}, -1),
        ({"log.retention.ms": "-1"}, -1),
    ],
)
def test_the_finest_unit_of_retention_wins(properties: dict[str, str], retention_ms: int) -> None:
    assert topic_config(BrokerConfig.from_properties(properties), {}).retention_ms == retention_ms


def test_rolling_and_flushing_fall_back_through_their_units_too() -> None:
    config = broker(log_roll_hours="1", log_roll_jitter_hours="2", log_flush_scheduler_interval_ms="50").topic_defaults
    assert (config.segment_ms, config.segment_jitter_ms, config.flush_ms) == (3_600_000, 7_200_000, 50)


def test_overrides_of_another_release_are_passed_over() -> None:
    config = topic_config(broker(), {"from.the.future": "1", "segment.bytes": "huge", "retention.ms": "9"})
    assert config.segment_bytes == 1 << 30
    assert config.retention_ms == 9


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ({}, None),
        ({"retention.ms": "-1", "cleanup.policy": "compact,delete"}, None),
        ({"leader.replication.throttled.replicas": "0:1,2:3"}, None),
        ({"leader.replication.throttled.replicas": "*"}, None),
        ({"leader.replication.throttled.replicas": "0-1"}, "PARTITION:BROKER"),
        ({"no.such.thing": "1"}, "Unknown topic config name: no.such.thing"),
        ({"retention.ms": None}, "Null value not supported for topic configs: retention.ms"),
        ({"retention.ms": "-2"}, "Invalid value -2 for configuration retention.ms: Value must be at least -1"),
        ({"compression.gzip.level": "0"}, "between 1 and 9"),
        ({"compression.gzip.level": "-1"}, None),
        ({"remote.storage.enable": "true"}, "Tiered Storage functionality is disabled in the broker."),
        (
            {"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "4"},
            "min.compaction.lag.ms (5) > max.compaction.lag.ms (4)",
        ),
    ],
)
def test_topic_configs_are_validated_with_a_reason(overrides: dict[str, str | None], problem: str | None) -> None:
    reason = validate_topic_configs(overrides)
    if problem is None:
        assert reason is None
    else:
        assert reason is not None
        assert problem in reason


def topic_entries(config: BrokerConfig, **overrides: str) -> dict[str, ConfigEntry]:
    texts = {name.replace("_", "."): text for name, text in overrides.items()}
    return {entry.name: entry for entry in describe_topic_configs(config, texts)}


def broker_entries(config: BrokerConfig, **facts: str) -> dict[str, ConfigEntry]:
    texts = {name.replace("_", "."): text for name, text in facts.items()}
    return {entry.name: entry for entry in describe_broker_configs(config, texts)}


def synonyms_of(entry: ConfigEntry) -> list[tuple[str, str | None, int]]:
    return [(synonym.name, synonym.value, synonym.source.value) for synonym in entry.synonyms]


def test_a_described_config_names_every_source_on_the_way_to_its_value() -> None:
    retention = topic_entries(broker(log_retention_ms="300000", log_retention_minutes="7"))["retention.ms"]
    assert retention.value == "300000"
    assert retention.source is ConfigSource.STATIC_BROKER_CONFIG
    assert not retention.is_default
    assert retention.type is ConfigType.LONG
    assert synonyms_of(retention) == [
        ("log.retention.ms", "300000", 4),
        ("log.retention.minutes", "7", 4),
        ("log.retention.hours", "168", 5),
    ]


def test_a_value_in_a_coarser_unit_has_its_source_and_like_in_kafka_no_synonyms() -> None:
    retention = topic_entries(broker(log_retention_minutes="5"))["retention.ms"]
    assert (retention.value, retention.source, retention.synonyms) == (
        "300000",
        ConfigSource.STATIC_BROKER_CONFIG,
        (),
    )
    assert topic_entries(broker())["retention.ms"].is_default


def test_what_kafka_4_1_dropped_is_described_only_where_it_is_set() -> None:
    assert set(topic_entries(broker())) == set(TOPIC_CONFIGS) - ONLY_IN_3_9
    assert "message.downconversion.enable" in topic_entries(broker(), message_downconversion_enable="false")
    assert "zookeeper.connect" not in broker_entries(broker())
    assert broker_entries(broker(zookeeper_connect="a:1"))["zookeeper.connect"].value == "a:1"


def test_a_broker_describes_every_config_and_keeps_secrets() -> None:
    config = broker(ssl_keystore_password="hush", num_partitions="4", broker_id="7")
    entries = broker_entries(config, log_dirs="/a,/b")
    assert set(entries) == (set(BROKER_CONFIGS) - ONLY_IN_3_9) | {"node.id"}
    assert entries["node.id"].value == entries["broker.id"].value == "7"
    assert (entries["log.dirs"].value, entries["log.dirs"].source) == ("/a,/b", ConfigSource.STATIC_BROKER_CONFIG)
    assert synonyms_of(entries["num.partitions"]) == [("num.partitions", "4", 4), ("num.partitions", "1", 5)]
    assert (entries["num.partitions"].is_read_only, entries["log.segment.bytes"].is_read_only) == (True, False)
    secret = entries["ssl.keystore.password"]
    assert (secret.value, secret.is_sensitive, synonyms_of(secret)) == (
        None,
        True,
        [("ssl.keystore.password", None, 4)],
    )
    assert entries["log.cleaner.io.max.bytes.per.second"].value == "1.7976931348623157E308"
    assert entries["authorizer.class.name"].value == ""
    assert entries["early.start.listeners"].value is None
    assert "hush" not in repr(entries)


def test_what_changes_while_the_broker_runs_acts_in_place_and_the_brokers_own_wins() -> None:
    config = broker(log_retention_hours="1", log_segment_bytes="2000000")
    config.set_dynamic(
        own={"log.retention.ms": "600"}, defaults={"log.retention.ms": "700", "log.segment.bytes": "3000000"}
    )
    assert (config.log_retention_ms, config.topic_defaults.retention_ms) == (600, 600)
    assert config.topic_defaults.segment_bytes == 3_000_000
    assert synonyms_of(broker_entries(config)["log.retention.ms"]) == [
        ("log.retention.ms", "600", 2),
        ("log.retention.ms", "700", 3),
        ("log.retention.hours", "1", 4),
        ("log.retention.hours", "168", 5),
    ]
    assert [(entry.name, entry.value) for entry in describe_default_broker_configs(config)] == [
        ("log.retention.ms", "700"),
        ("log.segment.bytes", "3000000"),
    ]
    config.set_dynamic(own={}, defaults={})
    assert (config.log_retention_ms, config.topic_defaults.retention_ms) == (None, 3_600_000)
    assert config.topic_defaults.segment_bytes == 2_000_000


def test_stored_configs_that_cannot_be_taken_are_passed_over() -> None:
    config = broker()
    config.set_dynamic(own={"num.partitions": "9", "log.retention.ms": "x", "for.a.plugin": "1"}, defaults={})
    assert (config.num_partitions, config.log_retention_ms) == (1, None)
    plugin = broker_entries(config)["for.a.plugin"]
    assert (plugin.value, plugin.is_sensitive, plugin.type) == (None, True, ConfigType.UNKNOWN)


@pytest.mark.parametrize(
    ("texts", "is_per_broker", "problem"),
    [
        ({"log.retention.ms": "5"}, True, None),
        ({"log.retention.ms": "5"}, False, None),
        ({"no.such.config": "x"}, True, None),
        ({"leader.replication.throttled.rate": "1000"}, True, None),
        ({"leader.replication.throttled.rate": "fast"}, True, "Not a number of type LONG"),
        (
            {"num.partitions": "5", "log.dirs": "/x"},
            True,
            "Cannot update these configs dynamically: num.partitions, log",
        ),
        ({"node.id": "5"}, True, "Cannot update these configs dynamically: node.id"),
        ({"listeners": "PLAINTEXT://a:1"}, True, "restart"),
        ({"ssl.keystore.type": "PEM"}, True, "only per-listener using the listener prefix: ssl.keystore.type"),
        ({"listener.name.a.ssl.keystore.type": "PEM"}, True, None),
        ({"listener.name.a.ssl.keystore.type": "PEM"}, False, "broker id"),
        ({"listener.name.a.ssl.client.auth": "none"}, True, "for existing listener A, restart broker"),
        ({"listener.name.a.ssl.principal.mapping.rules": "DEFAULT"}, True, "for existing listener A"),
        ({"listener.name.a.plain.sasl.jaas.config": "x"}, True, "for existing listener A"),
        ({"listener.name.a.no.such.config": "x"}, True, None),
        (
            {"log.retention.ms": "x"},
            True,
            "Invalid value x for configuration log.retention.ms: Not a number of type LONG",
        ),
    ],
)
def test_a_running_broker_takes_what_is_dynamic(
    texts: dict[str, str], is_per_broker: bool, problem: str | None
) -> None:
    reason = validate_dynamic_configs(texts, is_per_broker=is_per_broker)
    assert (reason is None) if problem is None else (reason is not None and problem in reason)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "0.5"),
        (0.0, "0.0"),
        (1e7, "1.0E7"),
        (123456789.5, "1.234567895E8"),
        (0.0001, "1.0E-4"),
        (-2.5e-7, "-2.5E-7"),
    ],
)
def test_numbers_look_as_java_prints_them(value: float, text: str) -> None:
    assert format_value(value) == text


def test_a_topics_own_config_comes_first_when_described() -> None:
    entries = {entry.name: entry for entry in describe_topic_configs(broker(), {"cleanup.policy": "compact"})}
    assert entries["cleanup.policy"].value == "compact"
    assert entries["cleanup.policy"].source is ConfigSource.DYNAMIC_TOPIC_CONFIG
    assert not entries["cleanup.policy"].is_default
    assert entries["preallocate"].is_default
    assert entries["cleanup.policy"].synonyms[0].name == "cleanup.policy"
    assert entries["preallocate"].value == "false"


@pytest.mark.parametrize("key", [*TOPIC_CONFIGS.values(), *BROKER_CONFIGS.values()], ids=lambda key: key.name)
def test_every_default_passes_its_own_check_and_every_fallback_exists(key: ConfigKey[object]) -> None:
    text = key.default_text
    if text is not None:
        assert key.parse(text) == key.default
    assert key.documentation.endswith(".")
    for fallback in key.fallbacks:
        assert fallback.name in BROKER_CONFIGS


@pytest.mark.parametrize("key", TOPIC_CONFIGS.values(), ids=lambda key: key.name)
def test_a_topics_default_is_what_the_brokers_defaults_give(key: ConfigKey[object]) -> None:
    given = {fallback.name: BROKER_CONFIGS[fallback.name].default_text for fallback in key.fallbacks}
    config = BrokerConfig.from_properties({name: text for name, text in given.items() if text is not None})
    assert config.topic_defaults.value_of(key.name) == key.default


def test_a_replica_selector_that_is_not_supported_refuses_the_start_in_one_line() -> None:
    selectors = [f"org.apache.kafka.common.replica.{name}" for name in ("LeaderSelector", "RackAwareReplicaSelector")]
    for name in selectors:
        assert broker(replica_selector_class=name).replica_selector_class == name
    assert broker().replica_selector_class is None
    for name in ("com.example.Nearest", "RackAwareReplicaSelector", ""):
        with pytest.raises(UserError) as refused:
            broker(replica_selector_class=name)
        assert str(refused.value) == f"replica.selector.class={name} must be one of {', '.join(selectors)}"


SOURCES = {path: path.read_text() for path in (Path(__file__).parents[2] / "kbroker").rglob("*.py")}
QUOTA = Path(__file__).parents[2] / "kbroker" / "replication" / "replication_quota.py"
USED_ATTRIBUTES = set(
    re.findall(r"(?:config|defaults|broker|self|\))(?=\.([a-z0-9_]+)\b)", "\n".join(SOURCES.values()))
    # An attribute of the configs by its name: one class serves the quotas of leaders and of followers.
    + re.findall(r'replicas="([a-z0-9_]+)"', SOURCES[QUOTA])
)
MARK_IT = "its row says otherwise: set or drop has_effect=False, or move it out of config/inactive.py"


@pytest.mark.parametrize("key", TOPIC_CONFIGS.values(), ids=lambda key: key.name)
def test_a_topic_config_has_an_effect_if_the_code_reads_it(key: ConfigKey[object]) -> None:
    assert key.has_effect == (key.attribute in USED_ATTRIBUTES), MARK_IT


@pytest.mark.parametrize("key", BROKER_CONFIGS.values(), ids=lambda key: key.name)
def test_a_broker_config_has_an_effect_if_the_code_reads_it(key: ConfigKey[object]) -> None:
    is_fallback = any(
        key.name == fallback.name
        for topic in TOPIC_CONFIGS.values()
        if topic.has_effect
        for fallback in topic.fallbacks
    )
    assert key.has_effect == (is_fallback or key.attribute in USED_ATTRIBUTES), MARK_IT


# Where we differ from Apache Kafka 4.1 on purpose.
OWN_DEFAULTS = {
    "listeners": "PLAINTEXT://127.0.0.1:9092",
    "log.dir": "kbroker-data",
    "queued.max.request.bytes": str(256 * 1024 * 1024),
    "socket.receive.buffer.bytes": "-1",
}
# Kafka keeps the first two out of its documentation, the others are ours.
UNDOCUMENTED = {
    "log.initial.task.delay.ms",
    "producer.id.expiration.check.interval.ms",
    "kbroker.metrics.listeners",
    "kbroker.metrics.security.protocol",
    "kbroker.metrics.token.file",
    "kbroker.log.dir.reserve.bytes",
    "kbroker.record.validation",
    "kbroker.zookeeper.jaas.file",
}
ONLY_IN_3_9 = {
    "controlled.shutdown.max.retries",
    "controlled.shutdown.retry.backoff.ms",
    "message.downconversion.enable",
    "log.message.downconversion.enable",
    "reserved.broker.max.id",
    "leader.imbalance.per.broker.percentage",
    *(key.name for key in keys_of(ZooKeeperConfig) if key.name.startswith("zookeeper.")),
}
# Small segments are what tests are made of: the limit is that of 3.9.
LIMIT_OF_3_9 = {"segment.bytes", "log.segment.bytes"}


@cache
def documented(java: str, classpath: str, main: str) -> dict[str, dict[str, str]]:
    """What Kafka itself says of its configs: name -> column -> text."""
    run = subprocess.run([java, "-cp", classpath, main], capture_output=True, text=True, check=True)
    configs = {}
    # A description may hold a list of its own: an entry ends where the next begins.
    for name, rest in re.findall(r'<h4><a id="([^"]+)"></a>(.*?)(?=<h4>|\Z)', run.stdout, re.DOTALL):
        cells = re.findall(r"<tr><th>([^<]+):</th><td>(.*?)</td></tr>", rest, re.DOTALL)
        configs[name] = {column: html.unescape(text) for column, text in cells}
    return configs


def differences(table: Mapping[str, ConfigKey[object]], kafka: dict[str, dict[str, str]]) -> Iterator[str]:
    for name, key in table.items():
        if name not in kafka:
            yield f"{name} is not there"
            continue
        # A default is followed by its meaning in brackets: 86400000 (1 day).
        default = re.sub(r"\s*\(.*\)$", "", kafka[name]["Default"]).strip('"')
        ours = "null" if key.default_text is None else key.default_text
        if default != ours and OWN_DEFAULTS.get(name) != ours:
            yield f"{name} has default {default}, not {ours}"
        if kafka[name]["Type"].upper() != key.type.name:
            yield f"{name} is of type {kafka[name]['Type']}, not {key.type.name}"
        limit = re.match(r"\[(-?\d+),\.\.\.", kafka[name].get("Valid Values", ""))
        if limit and not has_lower_limit(key, int(limit[1])):
            yield f"{name} begins at {limit[1]}"


def has_lower_limit(key: ConfigKey[object], limit: int) -> bool:
    key.parse(str(limit))
    try:
        key.parse(str(limit - 1))
    except ValueError:
        return True
    # -1 beside [1,...,9] stands for the library's own choice.
    return key.name == "compression.gzip.level"


def test_topic_configs_are_those_of_kafka_4_1(java: str, judge_classpath: str) -> None:
    kafka = documented(java, judge_classpath, "org.apache.kafka.storage.internals.log.LogConfig")
    assert set(kafka) == set(TOPIC_CONFIGS) - ONLY_IN_3_9
    ours = {name: key for name, key in TOPIC_CONFIGS.items() if name not in ONLY_IN_3_9}
    assert [difference for difference in differences(ours, kafka) if difference.split()[0] not in LIMIT_OF_3_9] == []
    for name, key in ours.items():
        fallback = key.fallbacks[0].name if key.fallbacks else "null"
        assert kafka[name]["Server Default Property"] == fallback


def test_broker_configs_are_those_of_kafka_4_1(java: str, judge_classpath: str) -> None:
    kafka = documented(java, judge_classpath, "kafka.server.KafkaConfig")
    ours = {name: key for name, key in BROKER_CONFIGS.items() if name not in ONLY_IN_3_9 | UNDOCUMENTED}
    assert set(kafka) == {*ours, "node.id"}
    assert {name for name, key in ours.items() if key.update.value != kafka[name]["Update Mode"]} == set()
    assert [difference for difference in differences(ours, kafka) if difference.split()[0] not in LIMIT_OF_3_9] == []


def test_what_4_1_dropped_is_as_it_was_in_3_9(java: str, judge39_classpath: str) -> None:
    topics = documented(java, judge39_classpath, "org.apache.kafka.storage.internals.log.LogConfig")
    brokers = documented(java, judge39_classpath, "kafka.server.KafkaConfig")
    ours = {**TOPIC_CONFIGS, **BROKER_CONFIGS}
    kept = {name: key for name, key in ours.items() if name in ONLY_IN_3_9 | LIMIT_OF_3_9}
    assert list(differences(kept, topics | brokers)) == []


@pytest.mark.parametrize("release", ["judge_classpath", "judge39_classpath"])
def test_no_config_of_kafkas_is_called_unknown(java: str, release: str, request: pytest.FixtureRequest) -> None:
    kafka = documented(java, request.getfixturevalue(release), "kafka.server.KafkaConfig")
    unknown = {name: "x" for name in kafka if name not in BROKER_CONFIGS and name != "node.id"}
    assert [warning for warning in BrokerConfig.from_properties(unknown).warnings if "no effect" not in warning] == []


@pytest.mark.parametrize("name", ["sasl.jaas.config", "listener.name.plaintext.sasl.jaas.config"])
def test_a_jaas_config_without_its_prefixes_is_a_warning(name: str) -> None:
    (warning,) = BrokerConfig.from_properties({name: "a.B required;"}).warnings
    assert warning.startswith(f"{name} has no effect: a JAAS config needs the prefix of its listener and its mechanism")
