"""Spark at secured listeners: it writes and reads, or fails as at Apache Kafka. Its client is that of Java 3.9."""

from __future__ import annotations

from typing import Any

from compat_tests.scenarios.secured import OF_JAVA, Login, SecuredBroker, check, java_properties, logins, try_all
from compat_tests.scenarios.test_sasl import MECHANISMS, SHA_512

ATTEMPTS = [f"SASL_SSL {mechanism}" for mechanism in MECHANISMS]
ATTEMPTS += ["SASL_PLAINTEXT SCRAM-SHA-512", "SSL certificate"]
FAILURES = [f"wrong password {SHA_512}", "another authority", "expired broker", "no certificate", "no right"]


def write_and_read(session: Any, login: Login) -> str:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    options = {f"kafka.{name}": text for name, text in java_properties(login).items()}
    # Spark keeps its producers, and those that cannot log in would try again each second.
    options["kafka.reconnect.backoff.max.ms"] = options["kafka.reconnect.backoff.ms"] = "60000"
    try:
        rows = session.createDataFrame([(login.topic, "tea")], "topic string, value string")
        rows.coalesce(1).write.format("kafka").options(**options).save()
        read = session.read.format("kafka").options(**options, subscribe=login.topic).load()
        return "" if read.where("value = 'tea'").count() else "no record was read"
    except (Py4JJavaError, PySparkException) as failure:
        return str(failure)


def test_spark(secured: SecuredBroker, spark_session: Any) -> None:
    attempts = logins(secured)
    chosen = {name: attempts[name] for name in (*ATTEMPTS, *FAILURES)}
    found = try_all(chosen, lambda login: write_and_read(spark_session, login))
    check(found, {name: OF_JAVA[name] for name in FAILURES})
