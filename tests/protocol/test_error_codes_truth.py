"""The whole table of error codes against the one inside Kafka's own jar."""

from __future__ import annotations

import subprocess
from pathlib import Path

from kbroker.protocol.error_codes import ErrorCode

PROGRAM = """
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.protocol.Errors;

public class PrintErrors {
    public static void main(String[] arguments) {
        for (Errors each : Errors.values()) {
            boolean retriable = each.exception() instanceof RetriableException;
            System.out.println(each.name() + " " + each.code() + " " + retriable);
        }
    }
}
"""


def test_every_code_is_the_one_of_kafka_4_1(java: str, judge_classpath: str, tmp_path: Path) -> None:
    program = tmp_path / "PrintErrors.java"
    program.write_text(PROGRAM)
    command = [java, "-cp", judge_classpath, str(program)]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    theirs = {tuple(line.split()) for line in output.splitlines()}
    ours = {(code.name, str(code.value), str(code.retriable).lower()) for code in ErrorCode}
    assert ours == theirs
