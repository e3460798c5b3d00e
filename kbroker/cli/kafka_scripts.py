"""Kafka's scripts, and the commands of kbroker that do the same: for `kbroker --help` and docs/cli.md."""

from __future__ import annotations

from typing import Final

__all__ = ["NOTES", "SCRIPTS", "commands_for", "note_for", "script_names"]

_MANY: Final = 3

SCRIPTS: Final = (
    ("kafka-server-start", "run a broker", "kbroker serve --config server.properties"),
    ("kafka-server-stop", "stop a broker", None),
    ("kafka-topics --create", "create a topic", "kbroker topics create NAME"),
    ("kafka-topics --list", "list topics", "kbroker topics list"),
    ("kafka-topics --describe", "partitions, leaders, replicas, configs", "kbroker topics describe [NAME]..."),
    (
        "kafka-topics --describe --under-replicated-partitions",
        "under-replicated partitions",
        "kbroker topics list --under-replicated",
    ),
    (
        "kafka-topics --describe --unavailable-partitions",
        "partitions without a leader",
        "kbroker topics list --unavailable",
    ),
    (
        "kafka-topics --describe --under-min-isr-partitions",
        "ISR below min.insync.replicas",
        "kbroker topics list --under-min-isr",
    ),
    (
        "kafka-topics --describe --at-min-isr-partitions",
        "ISR equal to min.insync.replicas",
        "kbroker topics list --at-min-isr",
    ),
    ("kafka-topics --alter", "add partitions", "kbroker topics alter NAME --partitions N"),
    ("kafka-topics --delete", "delete topics", "kbroker topics delete NAME..."),
    ("kafka-configs --describe", "show configs", "kbroker configs describe KIND NAME"),
    ("kafka-configs --alter", "change configs", "kbroker configs alter KIND NAME --set KEY=VALUE"),
    ("kafka-configs --add-config-file", "set configs of a file", "kbroker configs alter KIND NAME --from-file FILE"),
    ("kafka-configs --entity-type users, clients, ips", "quotas", "kbroker quotas list|set|delete"),
    ("kafka-configs --entity-type users", "SCRAM users", "kbroker users add|list|remove"),
    ("kafka-client-metrics", "subscriptions for client metrics", "kbroker configs describe|alter client-metrics NAME"),
    ("kafka-console-producer", "write records", "kbroker produce TOPIC"),
    ("kafka-console-consumer", "read records", "kbroker consume TOPIC"),
    ("kafka-console-consumer --formatter", "decode keys and values", "kbroker consume TOPIC --value-decoder TYPE"),
    ("kafka-consumer-groups --list", "list groups", "kbroker groups list"),
    ("kafka-consumer-groups --describe", "members, offsets, lag", "kbroker groups describe [GROUP]..."),
    ("kafka-consumer-groups --reset-offsets", "move a group", "kbroker groups reset-offsets GROUP"),
    ("kafka-consumer-groups --export", "save offsets", "kbroker groups export-offsets GROUP"),
    ("kafka-consumer-groups --from-file", "restore offsets", "kbroker groups import-offsets GROUP FILE"),
    (
        "kafka-consumer-groups --delete-offsets",
        "delete committed offsets",
        "kbroker groups delete-offsets GROUP --topic TOPIC",
    ),
    ("kafka-consumer-groups --delete", "delete groups", "kbroker groups delete GROUP..."),
    ("kafka-streams-application-reset", "reset an application", "kbroker groups reset-offsets GROUP"),
    ("kafka-groups", "list groups of all types", "kbroker groups list"),
    ("kafka-get-offsets", "offsets of partitions", "kbroker offsets TOPIC..."),
    ("kafka-delete-records", "delete the oldest records", "kbroker records delete TOPIC --before OFFSET"),
    ("kafka-leader-election --election-type preferred", "elect leaders", "kbroker leaders elect --all"),
    ("kafka-leader-election --election-type unclean", "elect any replica", "kbroker leaders elect TOPIC --unclean"),
    ("kafka-log-dirs --describe", "size of directories and replicas", "kbroker log-dirs describe"),
    ("kafka-transactions list", "list transactions", "kbroker transactions list"),
    ("kafka-transactions describe", "describe a transaction", "kbroker transactions describe TRANSACTIONAL_ID..."),
    ("kafka-transactions describe-producers", "producers of partitions", "kbroker transactions producers TOPIC"),
    ("kafka-transactions find-hanging", "find hanging transactions", "kbroker transactions find-hanging"),
    (
        "kafka-transactions abort",
        "abort a hanging transaction",
        "kbroker transactions abort-hanging TOPIC --partition N --start-offset OFFSET",
    ),
    (
        "kafka-transactions forceTerminateTransaction",
        "abort an open transaction",
        "kbroker transactions abort TRANSACTIONAL_ID",
    ),
    ("kafka-dump-log", "contents of partition files", "kbroker dump-log FILE..."),
    ("kafka-replica-verification", "compare replicas: dump each, then diff", "kbroker dump-log DIRECTORY --json"),
    ("kafka-producer-perf-test", "measure producing", "kbroker perf produce TOPIC"),
    ("kafka-consumer-perf-test", "measure consuming", "kbroker perf consume TOPIC"),
    ("kafka-e2e-latency", "measure end-to-end latency", "kbroker perf latency TOPIC"),
    ("kafka-features describe", "feature levels", "kbroker cluster describe --features"),
    ("kafka-broker-api-versions", "APIs of the broker", "kbroker cluster describe --apis"),
    ("kafka-cluster cluster-id, list-endpoints", "cluster id and brokers", "kbroker cluster describe"),
    (
        "connect-mirror-maker",
        "mirror topics to another cluster",
        "kbroker topics copy SOURCE TARGET, kbroker pipeline run FILE",
    ),
    ("kafka-acls --add", "allow or deny", "kbroker acls allow|deny PRINCIPAL OPERATION --topic TOPIC"),
    ("kafka-acls --list", "list ACLs", "kbroker acls list"),
    ("kafka-acls --remove", "remove ACLs", "kbroker acls remove --principal PRINCIPAL"),
    ("kafka-delegation-tokens --create", "create a token", "kbroker tokens create"),
    ("kafka-delegation-tokens --renew, --expire", "renew or expire a token", "kbroker tokens renew|expire ID"),
    ("kafka-delegation-tokens --describe", "list tokens", "kbroker tokens list"),
    ("kafka-reassign-partitions", "balance replicas over brokers", "kbroker cluster balance"),
    ("kafka-reassign-partitions", "empty a broker, or replace it", "kbroker cluster drain|replace"),
    ("kafka-reassign-partitions", "change the number of replicas", "kbroker topics replicas TOPIC N"),
    ("kafka-reassign-partitions --execute", "replicas from a JSON file", "kbroker cluster reassign FILE"),
    ("kafka-reassign-partitions --list, --verify", "list moves in progress", "kbroker cluster moves"),
    ("kafka-reassign-partitions --cancel", "cancel moves", "kbroker cluster balance --cancel"),
    ("kafka-jmx", "metrics", "kbroker serve --metrics-listen HOST:PORT"),
    ("kafka-share-groups, kafka-streams-groups, kafka-console-share-consumer", "share and streams groups", None),
    ("kafka-share-consumer-perf-test, kafka-verifiable-share-consumer", "share groups", None),
    ("kafka-storage format --add-scram", "the first users", "kbroker users add USER --data-dir DIRECTORY"),
    ("kafka-storage format", "prepare a data directory", None),
    ("kafka-metadata-quorum, kafka-metadata-shell", "KRaft metadata", None),
    ("zookeeper-security-migration", "protect existing znodes", None),
    ("zookeeper-server-start, zookeeper-server-stop, zookeeper-shell", "run and inspect ZooKeeper", None),
    ("connect-distributed, connect-standalone, connect-plugin-path", "Kafka Connect", None),
    ("kafka-verifiable-producer, kafka-verifiable-consumer, trogdor, kafka-run-class", "tests of Kafka itself", None),
)
"""Script of Apache Kafka, its job, and the command of kbroker. None: there is no command, and `NOTES` may say why."""

NOTES: Final = {
    "kafka-server-stop": "Press Ctrl-C, or send SIGTERM to the process of the broker: systemctl stop kbroker",
    "kafka-storage": "Not needed: the first start of a broker prepares an empty data directory",
    "zookeeper-security-migration": "Use Kafka's script: it protects the nodes of kbroker too",
    "zookeeper-server-start": "Use the scripts of ZooKeeper",
    "connect-distributed": "Use Kafka Connect: it works with kbroker",
    "kafka-verifiable-producer": "Use Kafka's scripts: they are clients, and work with kbroker too",
}
"""First script of a row without a command -> what to do instead."""


def commands_for(script: str) -> list[str]:
    """Returns the commands for a script, without arguments: `records delete`. Empty if there is none.

    Commands of one group are joined: `configs describe|alter`, or only its name if there are many. The script may end
    in `.sh`.
    """
    wanted = script.removesuffix(".sh")
    groups: dict[str, list[str]] = {}
    for scripts, _, commands in SCRIPTS:
        if commands is not None and wanted in _names(scripts):
            for call in commands.split(", "):
                group, _, name = _command(call, with_option="--" not in scripts).partition(" ")
                names = groups.setdefault(group, [])
                names += [each for each in name.split("|") if each not in names]
    return [
        group if len(names) > _MANY or names == [""] else f"{group} {'|'.join(names)}"
        for group, names in groups.items()
    ]


def note_for(script: str) -> str | None:
    """Returns what to do in place of a script without a command; None if nothing is known. It may end in `.sh`."""
    wanted = script.removesuffix(".sh")
    rows = (_names(scripts) for scripts, _, commands in SCRIPTS if commands is None)
    return next((NOTES.get(names[0]) for names in rows if wanted in names), None)


def script_names() -> list[str]:
    """Returns the names of the scripts that have a command, in alphabetical order."""
    return sorted({name for scripts, _, commands in SCRIPTS if commands is not None for name in _names(scripts)})


def _names(scripts: str) -> list[str]:
    """Returns the scripts of a row: several, or one with its options and their values."""
    names = scripts.split(", ")
    return [names[0].split()[0]] if " " in names[0] else names


def _command(call: str, *, with_option: bool) -> str:
    """Returns the words of a call before its arguments, `with_option` with an option that follows them."""
    words = call.split()[1:]
    end = next((number for number, word in enumerate(words) if not word.islower() or word[0] in "-["), len(words))
    if with_option and words[end:] and words[end].startswith("--"):
        end += 1
    return " ".join(words[:end])
