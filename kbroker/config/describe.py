"""DescribeConfigs entries of topics and brokers: values, sources and synonyms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import dropwhile
from typing import Final

from kbroker.config.broker import BROKER_CONFIGS, ONLY_DYNAMIC, THROTTLED_RATE, BrokerConfig
from kbroker.config.key import (
    ConfigEntry,
    ConfigSource,
    ConfigSynonym,
    ConfigType,
    UpdateMode,
)
from kbroker.config.listener import split_name
from kbroker.config.topic import TOPIC_CONFIGS, topic_config

__all__ = ["describe_broker_configs", "describe_default_broker_configs", "describe_topic_configs"]


def describe_topic_configs(defaults: BrokerConfig, overrides: Mapping[str, str]) -> list[ConfigEntry]:
    """Returns all configs of a topic, with their effective values and synonyms."""
    effective = topic_config(defaults, overrides)
    layers = _layers(defaults, {})
    entries = []
    for name, key in TOPIC_CONFIGS.items():
        if key.is_retired and name not in overrides:
            continue
        value = key.format(effective.value_of(name))
        names = [fallback.name for fallback in key.fallbacks]
        synonyms = _synonyms(names, layers)
        source = synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG
        # As in Kafka: the synonyms start with the first fallback. There are none if the first fallback has no value.
        synonyms = _from_name(names[0], synonyms) if names else []
        if name in overrides:
            source = ConfigSource.DYNAMIC_TOPIC_CONFIG
            synonyms.insert(0, ConfigSynonym(name, value, source))
        entries.append(ConfigEntry(name, value, source, key.type, tuple(synonyms), key.documentation))
    return entries


def describe_broker_configs(config: BrokerConfig, facts: Mapping[str, str]) -> list[ConfigEntry]:
    """Returns all configs of a broker.

    `facts` are actual values that differ from the configured ones: id, ports, directories.
    """
    layers = _layers(config, facts)
    entries = []
    for name, key in BROKER_CONFIGS.items():
        if key.is_retired and name not in config.texts:
            continue
        value = facts.get(name, key.format(config.value_of(name)))
        synonyms = _from_name(name, _synonyms(_SYNONYMS.get(name, (name,)), layers))
        source = synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG
        is_read_only = key.update is UpdateMode.READ_ONLY
        entry = ConfigEntry(name, value, source, key.type, tuple(synonyms), key.documentation, False, is_read_only)
        entries.append(_without_secret(entry) if key.is_sensitive else entry)
    entries += _listener_entries(layers)
    entries += [
        _unknown_entry(name, text, ConfigSource.DYNAMIC_BROKER_CONFIG)
        for name, text in config.dynamic_texts.items()
        if name not in BROKER_CONFIGS and split_name(name) is None
    ]
    broker_id = next(entry for entry in entries if entry.name == "broker.id")
    node_id = broker_id._replace(name="node.id", documentation="Same as broker.id. This is the name that KRaft uses.")
    return [*entries, node_id._replace(synonyms=(ConfigSynonym("node.id", node_id.value, node_id.source),))]


def _listener_entries(layers: _Layers) -> list[ConfigEntry]:
    """Returns the configs that are set with the prefix of a listener. Those of a SASL mechanism are hidden."""
    entries = []
    for name in dict.fromkeys(name for _source, texts in layers for name in texts):
        prefixed = split_name(name)
        if prefixed is None:
            continue
        key = None if prefixed.mechanism is not None else BROKER_CONFIGS.get(prefixed.base)
        source, text = next((source, texts[name]) for source, texts in layers if name in texts)
        if key is None:
            entries.append(_unknown_entry(name, text, source))
            continue
        is_read_only = key.update is UpdateMode.READ_ONLY
        synonyms = (ConfigSynonym(name, text, source), *_synonyms([prefixed.base], layers))
        entry = ConfigEntry(name, text, source, key.type, synonyms, key.documentation, False, is_read_only)
        entries.append(_without_secret(entry) if key.is_sensitive else entry)
    return entries


def describe_default_broker_configs(config: BrokerConfig) -> list[ConfigEntry]:
    """Returns the dynamic configs of all brokers of the cluster."""
    source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    entries = []
    for name, text in config.dynamic_default_texts.items():
        key = BROKER_CONFIGS.get(name)
        if key is None:
            entries.append(_unknown_entry(name, text, source))
        else:
            synonyms = (ConfigSynonym(name, text, source),)
            entries.append(ConfigEntry(name, text, source, key.type, synonyms, key.documentation))
    return entries


def _unknown_entry(name: str, text: str, source: ConfigSource) -> ConfigEntry:
    """Returns the entry of a config that is not in the table. Unknown values are hidden: they may hold secrets."""
    if name in ONLY_DYNAMIC:
        synonyms = (ConfigSynonym(name, text, source),)
        return ConfigEntry(name, text, source, ConfigType.LONG, synonyms, THROTTLED_RATE.documentation)
    return ConfigEntry(name, None, source, ConfigType.UNKNOWN, (ConfigSynonym(name, None, source),), None, True)


def _without_secret(entry: ConfigEntry) -> ConfigEntry:
    synonyms = tuple(synonym._replace(value=None) for synonym in entry.synonyms)
    return entry._replace(value=None, synonyms=synonyms, is_sensitive=True)


_Layers = tuple[tuple[ConfigSource, Mapping[str, str]], ...]


def _layers(config: BrokerConfig, facts: Mapping[str, str]) -> _Layers:
    """Returns the sources of a broker's values, highest precedence first."""
    return (
        (ConfigSource.DYNAMIC_BROKER_CONFIG, config.dynamic_texts),
        (ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, config.dynamic_default_texts),
        (ConfigSource.STATIC_BROKER_CONFIG, {**config.texts, **facts}),
    )


def _synonyms(names: Sequence[str], layers: _Layers) -> list[ConfigSynonym]:
    """Returns all values of these names, from the effective value to the defaults."""
    found = [ConfigSynonym(name, texts[name], source) for source, texts in layers for name in names if name in texts]
    for name in names:
        default = BROKER_CONFIGS[name].default_text
        if default is not None:
            found.append(ConfigSynonym(name, default, ConfigSource.DEFAULT_CONFIG))
    return found


def _from_name(name: str, synonyms: list[ConfigSynonym]) -> list[ConfigSynonym]:
    return list(dropwhile(lambda synonym: synonym.name != name, synonyms))


_SYNONYMS: Final = {
    fallback.name: tuple(synonym.name for synonym in key.fallbacks)
    for key in TOPIC_CONFIGS.values()
    if len(key.fallbacks) > 1
    for fallback in key.fallbacks
}
"""Broker configs that set the same value in different units."""
