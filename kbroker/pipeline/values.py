"""Parses the values of records, and keeps apart the records whose value does not parse. Never drops a record."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import functions
from pyspark.sql.types import StringType, StructField, StructType

from kbroker.errors import UserError
from kbroker.pipeline.definition import ValueFormat
from kbroker.pipeline.problems import first_line

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["ParsedRecords", "parse_values"]

CORRUPT: Final = "_kbroker_corrupt"
PARSED: Final = "_kbroker_parsed"
REASON: Final = "reason"


class ParsedRecords(NamedTuple):
    records: DataFrame
    """Records with `value` as a struct of the schema."""
    rejected: DataFrame
    """Records whose value does not parse, with the original value and the column `reason`."""


def parse_values(frame: DataFrame, values: ValueFormat) -> ParsedRecords:
    """Returns the parsed and the rejected records. Without dead letters, a rejected record ends the query."""
    try:
        parsed, is_bad = _PARSERS[values.format](_content(values), values)
        wide = frame.withColumn(PARSED, parsed).withColumn(CORRUPT, is_bad)
    except (AnalysisException, ParseException, ValueError) as problem:
        raise UserError(f"The schema of the values is not valid: {first_line(problem)}") from problem
    reason = functions.lit(f"the value is not {values.format.upper()} of the schema")
    names = [name for name in frame.columns if name != "value"]
    columns = [*names, functions.col(PARSED).alias("value")]
    if values.dead_letters is None:
        checked = functions.when(functions.col(CORRUPT), functions.raise_error(_complaint(values.format)))
        columns = [*names, checked.otherwise(functions.col(PARSED)).alias("value")]
        records = wide.select(*columns)
    else:
        records = wide.filter(~functions.col(CORRUPT)).select(*columns)
    rejected = wide.filter(functions.col(CORRUPT)).drop(PARSED, CORRUPT).withColumn(REASON, reason)
    return ParsedRecords(records, rejected)


def _complaint(kind: str) -> Column:
    col, lit = functions.col, functions.lit
    return functions.concat(
        lit("The value at offset "),
        col("offset").cast("string"),
        lit(" of partition "),
        col("partition").cast("string"),
        lit(" of topic "),
        col("topic"),
        lit(f" is not {kind.upper()} of the schema. Set values.dead_letters to keep such records apart"),
    )


def _content(values: ValueFormat) -> Column:
    value = functions.col("value")
    if values.skip_bytes == 0:
        return value
    return functions.substring(value, values.skip_bytes + 1, 2**31 - 1)


def _parse_text(content: Column, values: ValueFormat, parse: Any) -> tuple[Column, Column]:
    fields = StructType.fromDDL(values.schema).fields
    schema = StructType([*fields, StructField(CORRUPT, StringType())])
    options = {**values.options, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    text = content.cast("string")
    whole = parse(text, schema.simpleString() if parse is functions.from_csv else schema, options)
    is_bad = content.isNotNull() & (whole.isNull() | whole.getField(CORRUPT).isNotNull())
    return whole.dropFields(CORRUPT), is_bad


def _parse_json(content: Column, values: ValueFormat) -> tuple[Column, Column]:
    return _parse_text(content, values, functions.from_json)


def _parse_csv(content: Column, values: ValueFormat) -> tuple[Column, Column]:
    return _parse_text(content, values, functions.from_csv)


def _parse_avro(content: Column, values: ValueFormat) -> tuple[Column, Column]:
    """Parses with a reader schema that has one field more. A malformed value leaves the field without its default."""
    from pyspark.sql.avro.functions import from_avro

    writer = json.loads(values.schema)
    if not isinstance(writer, dict) or writer.get("type") != "record":
        raise ValueError("an Avro schema must be a record")
    marker = {"name": PARSED, "type": "boolean", "default": True}
    reader = {**writer, "fields": [*writer["fields"], marker]}
    options = {**values.options, "mode": "PERMISSIVE", "avroSchema": json.dumps(reader)}
    whole = from_avro(content, json.dumps(writer), options)
    return whole.dropFields(PARSED), content.isNotNull() & whole.getField(PARSED).isNull()


def _parse_protobuf(content: Column, values: ValueFormat) -> tuple[Column, Column]:
    from pyspark.sql.protobuf.functions import from_protobuf

    options = {**values.options, "mode": "PERMISSIVE"}
    whole = from_protobuf(content, values.message, values.schema, options)
    return whole, content.isNotNull() & whole.isNull()


_PARSERS: Final = {"json": _parse_json, "csv": _parse_csv, "avro": _parse_avro, "protobuf": _parse_protobuf}
