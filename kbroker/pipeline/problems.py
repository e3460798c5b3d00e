"""Turns failures of Spark into one line that says what to do. Knows the texts of Spark's errors, and no pyspark."""

from __future__ import annotations

import re
from typing import Final

from kbroker.errors import UserError

__all__ = ["batch_problem", "first_line", "problem_of"]

RESUMES: Final = "Run the pipeline again: it resumes from its checkpoint"

DELETED: Final = (
    "Records were deleted before they were read (by retention, or with their topic). "
    "To go on without them, set failOnDataLoss = false in [source.options]"
)
UNANSWERED: Final = f"No broker answered in time. Start the broker. {RESUMES}"
UNKNOWN_TOPIC: Final = "A topic of the pipeline does not exist any more. Create it, or remove it from the file"
UNRESOLVED: Final = "Maven could not find a package ({}). Check the network, or name local files in [spark] jars"

# Text of Spark's error -> what to tell the user; {} is what the first group has found.
_KNOWN: Final = (
    (r"^\s*kbroker\.[\w.]+: (.+)$", "{}"),  # an error of the sink, in a traceback of Python
    (r"No space left on device|Disk quota exceeded", f"The disk is full. Free some space. {RESUMES}"),
    (r"\[USER_RAISED_EXCEPTION\] (The value at offset [^\n]*?)(?: SQLSTATE.*)?$", "{}"),
    (r"Some data may have been lost|KAFKA_DATA_LOSS", DELETED),
    (r"UnknownTopicOrPartitionException|UNKNOWN_TOPIC_OR_PARTITION", UNKNOWN_TOPIC),
    (r"(?:unresolved dependency|UNRESOLVED DEPENDENCIES)[: ]*([^\s]+)?", UNRESOLVED),
    (r"Timed out waiting for a node assignment|TimeoutException: .*(?:describeTopics|metadata)", UNANSWERED),
    (
        r"Failed to find data source: (\w+)|DATA_SOURCE_NOT_FOUND",
        "Spark has no package for '{}'. Add it to [spark] packages",
    ),
)
# Spark takes a failure of a batch for the stop of its query if the text has these words.
INTERRUPTED: Final = "py4j.protocol.Py4JJavaError: An error occurred while calling it: java.lang.InterruptedException"
_INTERRUPTION: Final = re.compile(r"Interrupted(?:IO)?Exception|ClosedByInterruptException|cancelled job group")
_RAISED: Final = re.compile(r"^(\w+Error): (.+)$", re.MULTILINE)
_CAUSED: Final = re.compile(r"^Caused by: [\w.$]*?(\w+(?:Exception|Error)): (.*)$", re.MULTILINE)


def _text_of(failure: BaseException) -> str:
    """Returns the text of a failure; the name of its type if the JVM, which has the text, has ended.

    pyspark keeps the causes of a streaming query's failure apart, in the stack of the first cause.
    """
    try:
        text = str(failure)
    except Exception:
        return type(failure).__name__
    stack = getattr(getattr(failure, "_cause", None), "_stackTrace", None)
    return text if stack is None else f"{text}\n{stack}"


def first_line(failure: BaseException) -> str:
    """Returns the first line of an error, without the state code and the JVM's stack."""
    lines = [line.strip() for line in _text_of(failure).splitlines() if line.strip()]
    text = lines[0] if lines else type(failure).__name__
    return re.sub(r"\s*;?\s*SQLSTATE: \w+.*$", "", text)


def batch_problem(failure: Exception) -> Exception:
    """Returns a failure with a short text, for a function that Spark calls with each batch.

    Spark searches the text by a regular expression that overflows the stack of the JVM if the text is long, as one of
    py4j with the stack of the JVM is: then the stop of a query would not be clean.
    """
    if _INTERRUPTION.search(_text_of(failure)):
        return RuntimeError(INTERRUPTED)
    return problem_of(failure)


def problem_of(failure: BaseException) -> UserError:
    """Returns the error that the user sees."""
    if isinstance(failure, UserError):
        return failure
    text = _text_of(failure)
    for pattern, advice in _KNOWN:
        found = re.search(pattern, text, re.MULTILINE)
        if found is not None:
            return UserError(advice.replace("{}", next((group for group in found.groups() if group), "unknown")))
    causes = _RAISED.findall(text) or _CAUSED.findall(text)
    reason = f"{causes[-1][0]}: {causes[-1][1]}" if causes else first_line(failure)
    return UserError(f"Spark ended the pipeline: {reason}")
