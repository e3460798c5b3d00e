"""What a test may say of its broker, and what it is told when it says nonsense."""

from __future__ import annotations

import pytest

from kbroker.errors import UserError
from kbroker.testing.settings import config_for_tests, listener_properties, properties_of, topics_of, warn_about


def test_settings_are_properties_with_underscores_for_dots() -> None:
    settings = properties_of({"num_partitions": 3, "auto_create_topics_enable": False, "log.retention.ms": "5"})
    assert settings == {"num.partitions": "3", "auto.create.topics.enable": "false", "log.retention.ms": "5"}


def test_several_values_are_one_list() -> None:
    assert properties_of({"log_cleanup_policy": ["compact", "delete"]}) == {"log.cleanup.policy": "compact,delete"}


@pytest.mark.parametrize(
    ("topics", "expected"),
    [
        ((), []),
        (["orders:3", "events"], [("orders", 3), ("events", -1)]),
        ({"orders": 3}, [("orders", 3)]),
        ("orders:2", [("orders", 2)]),
    ],
)
def test_topics_are_names_with_or_without_a_count(topics: object, expected: list[tuple[str, int]]) -> None:
    assert topics_of(topics) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("topics", [["orders:"], ["orders:many"], ["orders:-1"], ["orders:0"], {"orders": 0}])
def test_a_count_that_is_none_is_refused(topics: object) -> None:
    with pytest.raises(UserError, match="orders"):
        topics_of(topics)  # type: ignore[arg-type]


def test_a_broker_of_a_test_listens_where_nobody_else_reaches_it() -> None:
    (endpoint,) = config_for_tests({}).endpoints
    assert (endpoint.host, endpoint.port) == ("127.0.0.1", 0)


def test_a_mistyped_setting_is_a_warning_that_names_the_right_one() -> None:
    with pytest.warns(UserWarning, match=r"num\.partition.*did you mean num\.partitions") as told:
        warn_about(config_for_tests({"num.partition": "3"}), stacklevel=1)
    assert told[0].filename == __file__
    assert len(told) == 1


def test_containers_have_a_listener_of_their_own() -> None:
    config = config_for_tests(listener_properties("host.docker.internal", "0.0.0.0"))
    assert [str(endpoint) for endpoint in config.endpoints] == ["PLAINTEXT://127.0.0.1:0", "CONTAINERS://0.0.0.0:0"]
    assert str(config.advertised_endpoints[1]) == "CONTAINERS://host.docker.internal:0"
    assert {endpoint.security_protocol for endpoint in config.endpoints} == {"PLAINTEXT"}
    ports = {"PLAINTEXT": 4001, "CONTAINERS": 4002}
    config = config_for_tests(listener_properties("host.docker.internal", "0.0.0.0", ports))
    assert [endpoint.port for endpoint in (*config.endpoints, *config.advertised_endpoints)] == [4001, 4002] * 2


def test_a_value_that_is_wrong_is_refused() -> None:
    with pytest.raises(UserError, match=r"num\.partitions"):
        config_for_tests({"num.partitions": "many"})


@pytest.mark.parametrize("value", [None, 3.5j, [1]])
def test_a_value_of_another_type_is_refused(value: object) -> None:
    with pytest.raises(UserError, match=r"num_partitions=.* is not a text, a number, a bool or a list of texts"):
        properties_of({"num_partitions": value})  # type: ignore[dict-item]


def test_a_topic_that_is_no_text_is_refused() -> None:
    with pytest.raises(UserError, match=r"Invalid topic 3: expected name or name:partitions"):
        topics_of([3])  # type: ignore[list-item]


def test_a_directory_is_named_by_data_dir_alone() -> None:
    with pytest.raises(UserError, match="data_dir"):
        config_for_tests({"log.dirs": "/somewhere"})
