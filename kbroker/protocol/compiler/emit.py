"""Emits the Python source of a decoder and an encoder from steps.

Adjacent fixed-width fields, with the length that follows them, become one `struct` call (a "run"). A compact length is
read as one byte; if its continuation bit is set, a function reads the varint again. Nested structs are inlined. Tagged
fields, which are rare, get separate functions.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kbroker.errors import PeerError
from kbroker.protocol.compiler import runtime
from kbroker.protocol.compiler.plan import (
    ArrayStep,
    BlobStep,
    FixedStep,
    Step,
    StructPlan,
    StructStep,
    TagStep,
    TextStep,
    least_size,
)

__all__ = ["Source"]


class Source:
    """Source of a module under construction, and the names that it uses."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.lines: list[str] = []
        self.indent = 0
        self.count = 0
        self.names: dict[str, Any] = {
            "pack": struct.pack,
            "unpack_from": struct.unpack_from,
            "PeerError": PeerError,
            "bad_bytes": (struct.error, IndexError, UnicodeDecodeError),
            **{name: getattr(runtime, name) for name in runtime.__all__},
        }

    def text(self) -> str:
        return "\n".join(self.lines) + "\n"

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    @contextmanager
    def block(self, text: str) -> Iterator[None]:
        self.line(text)
        self.indent += 1
        yield
        self.indent -= 1

    def fresh(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def constant(self, prefix: str, value: Any) -> str:
        for name, known in self.names.items():
            if known is value:
                return name
        name = self.fresh(prefix)
        self.names[name] = value
        return name

    def layout(self, codes: list[str], kind: str) -> str:
        """Returns the name of `Struct(">…").pack` or `.unpack_from`."""
        letters = "".join(codes)
        name = f"{kind}_{letters.replace('?', 'o')}"
        if name not in self.names:
            layout = struct.Struct(f">{letters}")
            self.names[name] = layout.pack if kind == "pack" else layout.unpack_from
        return name

    def few(self, kind: Callable[[str], tuple[Any, ...]], code: str) -> str:
        """Returns the name of a table of `struct` calls for short lists."""
        name = f"{kind.__name__}_{code.replace('?', 'o')}"
        if name not in self.names:
            self.names[name] = kind(code)
        return name

    def decoder(self, plan: StructPlan) -> None:
        Decoder(self).function(plan)

    def encoder(self, plan: StructPlan) -> None:
        Encoder(self).function(plan)


class Decoder:
    def __init__(self, source: Source) -> None:
        self.source = source
        self.codes: list[str] = []
        self.targets: list[str] = []
        self.later: list[tuple[str, StructPlan]] = []

    def function(self, plan: StructPlan) -> None:
        source = self.source
        with source.block("def decode(buffer, position=0, left=MAX_ELEMENTS):"):
            source.line("size = len(buffer)")
            with source.block("try:"):
                root = self.struct(plan)
                self.flush()
                source.line(f"return {root}, position")
            with source.block("except bad_bytes as error:"):
                source.line(f"raise PeerError(f'{source.label}: {{error}}') from error")
        while self.later:
            self.tags_function(*self.later.pop())

    def struct(self, plan: StructPlan) -> str:
        source = self.source
        value = source.fresh("o")
        source.line(f"{value} = {source.constant('C', plan.struct.bare_value())}()")
        for absent in plan.absent:
            source.line(f"{value}.{absent.name} = {default_expression(source, absent)}")
        for step in plan.steps:
            self.step(step, f"{value}.{step.name}")
        if plan.flexible:
            count = source.fresh("n")
            self.fixed("B", count)
            self.flush()
            with source.block(f"if {count}:"):
                if plan.tags:
                    name = source.fresh("tags")
                    self.later.append((name, plan))
                    source.line(f"position, left = {name}(buffer, position, {count}, {value}, left)")
                else:
                    source.line(f"position = skip_tags(buffer, position, {count})")
        return value

    def tags_function(self, name: str, plan: StructPlan) -> None:
        source = self.source
        with source.block(f"def {name}(buffer, position, count, value, left):"):
            source.line("size = len(buffer)")
            source.line("if count > 127: count, position = varint(buffer, position - 1)")
            with source.block("for _ in range(count):"):
                source.line("tag, position = varint(buffer, position)")
                source.line("length, position = varint(buffer, position)")
                source.line("end = position + length")
                source.line("if end > size: refuse('a tagged field ends beyond the message')")
                for tag in plan.tags:
                    with source.block(f"if tag == {tag.tag}:"):
                        self.step(tag.step, f"value.{tag.step.name}")
                        self.flush()
                        source.line("if position != end: refuse('a tagged field is longer or shorter than it says')")
                source.line("position = end")
            source.line("return position, left")

    def step(self, step: Step, target: str) -> None:
        match step:
            case FixedStep():
                self.fixed(step.code, target)
            case TextStep() | BlobStep():
                self.sized(step, target)
            case ArrayStep():
                self.array(step, target)
            case StructStep():
                self.nested(step, target)

    def fixed(self, code: str, target: str) -> None:
        self.codes.append(code)
        self.targets.append(target)

    def flush(self) -> None:
        codes, targets = self.codes, self.targets
        if not codes:
            return
        source = self.source
        if codes == ["B"]:
            source.line(f"{targets[0]} = buffer[position]")
        else:
            source.line(f"{', '.join(targets)}, = {source.layout(codes, 'unpack')}(buffer, position)")
        source.line(f"position += {struct.calcsize('>' + ''.join(codes))}")
        self.codes, self.targets = [], []

    def length(self, step: TextStep | BlobStep | ArrayStep) -> str:
        """Emits the read of a length. The variable has the value on the wire: for compact types, length + 1."""
        source = self.source
        length = source.fresh("n")
        self.fixed("B" if step.compact else "h" if isinstance(step, TextStep) else "i", length)
        self.flush()
        if step.compact:
            source.line(f"if {length} > 127: {length}, position = varint(buffer, position - 1)")
        return length

    @contextmanager
    def unless_null(self, step: TextStep | BlobStep | ArrayStep, length: str, target: str) -> Iterator[None]:
        source = self.source
        is_null = f"not {length}" if step.compact else f"{length} < 0"
        if not step.nullable:
            source.line(f"if {is_null}: refuse('{source.label}: {step.name or 'an element'} may not be null')")
            yield
            return
        with source.block(f"if {is_null}:"):
            source.line(f"{target} = None")
        with source.block("else:"):
            yield

    def sized(self, step: TextStep | BlobStep, target: str) -> None:
        source = self.source
        length = self.length(step)
        with self.unless_null(step, length, target):
            end = source.fresh("e")
            source.line(f"{end} = position + {length}{' - 1' if step.compact else ''}")
            source.line(
                f"if {end} > size: refuse('{source.label}: {step.name or 'an element'} ends beyond the message')"
            )
            part = f"buffer[position:{end}]"
            if isinstance(step, TextStep):
                if step.compact:
                    source.line(
                        f"if {length} > 32768: refuse('{source.label}: a string of {{}} bytes'.format({length} - 1))"
                    )
                source.line(f"{target} = str({part}, 'utf-8')")
            else:
                source.line(f"{target} = {part if step.is_records else f'bytes({part})'}")
            source.line(f"position = {end}")

    def array(self, step: ArrayStep, target: str) -> None:
        source = self.source
        length = self.length(step)
        with self.unless_null(step, length, target):
            if step.compact:
                source.line(f"{length} -= 1")
            least = least_size(step.element)
            needed = length if least == 1 else f"{length} * {least}"
            source.line(f"left -= {length}")
            refusal = f"refuse('{source.label}: {step.name} announces {{}} elements'.format({length}))"
            source.line(f"if left < 0 or {needed} > size - position: {refusal}")
            element = step.element
            if isinstance(element, FixedStep) and len(element.code) == 1:
                few = f"{source.few(runtime.few_unpacks, element.code)}[{length}](buffer, position)"
                many = f"unpack_from(f'>{{{length}}}{element.code}', buffer, position)"
                source.line(f"{target} = list({few} if {length} < FEW else {many})")
                source.line(f"position += {needed}")
                return
            items = source.fresh("a")
            source.line(f"{items} = []")
            with source.block(f"for _ in range({length}):"):
                if isinstance(element, StructStep):
                    value = self.struct(element.plan)
                else:
                    value = source.fresh("v")
                    self.step(element, value)
                self.flush()
                source.line(f"{items}.append({value})")
            source.line(f"{target} = {items}")

    def nested(self, step: StructStep, target: str) -> None:
        source = self.source
        if not step.nullable:
            value = self.struct(step.plan)
            self.flush()
            source.line(f"{target} = {value}")
            return
        marker = source.fresh("n")
        self.fixed("b", marker)
        self.flush()
        with source.block(f"if {marker} < 0:"):
            source.line(f"{target} = None")
        with source.block("else:"):
            value = self.struct(step.plan)
            self.flush()
            source.line(f"{target} = {value}")


class Encoder:
    def __init__(self, source: Source) -> None:
        self.source = source
        self.codes: list[str] = []
        self.values: list[str] = []
        self.later: list[tuple[str, StructPlan]] = []

    def function(self, plan: StructPlan) -> None:
        source = self.source
        with source.block("def encode(value, parts):"):
            source.line("put = parts.append")
            self.struct(plan, "value")
            self.flush()
        while self.later:
            self.tags_function(*self.later.pop())

    def struct(self, plan: StructPlan, value: str) -> None:
        for step in plan.steps:
            self.step(step, f"{value}.{step.name}")
        if plan.tags:
            self.tags(plan, value)
        elif plan.flexible:
            self.codes.append("x")  # a pad byte is an empty tag section

    def tags(self, plan: StructPlan, value: str) -> None:
        source = self.source
        name = source.fresh("tags")
        self.later.append((name, plan))
        if self.codes:
            self.flush()
        condition = " or ".join(self.is_present(tag, f"{value}.{tag.step.name}") for tag in plan.tags)
        source.line(f"if {condition}: {name}({value}, put)")
        source.line("else: put(b'\\0')")

    def is_present(self, tag: TagStep, value: str) -> str:
        default = tag.field.default_value
        match tag.step:
            case ArrayStep() if default == []:
                return f"{value} != []" if tag.step.nullable else f"({value} or {value} is None)"
            case StructStep() if default is not None:
                shared = self.source.constant("D", tag.field.default())
                return f"({value} is not {shared} and {value} != {shared})"
        if default is None:
            return f"{value} is not None"
        return f"{value} != {default!r}"

    def tags_function(self, name: str, plan: StructPlan) -> None:
        source = self.source
        with source.block(f"def {name}(value, out):"):
            source.line("tags = []")
            for tag in plan.tags:
                with source.block(f"if {self.is_present(tag, f'value.{tag.step.name}')}:"):
                    source.line("parts = []")
                    source.line("put = parts.append")
                    self.step(tag.step, f"value.{tag.step.name}")
                    self.flush()
                    source.line("data = b''.join(parts)")
                    source.line(f"tags.append(long_length({tag.tag}) + long_length(len(data)) + data)")
            source.line("out(long_length(len(tags)) + b''.join(tags))")

    def step(self, step: Step, value: str) -> None:
        match step:
            case FixedStep():
                self.codes.append(step.code)
                self.values.append(self.fixed(step, value))
            case TextStep() | BlobStep():
                self.sized(step, value)
            case ArrayStep():
                self.array(step, value)
            case StructStep():
                self.nested(step, value)

    def fixed(self, step: FixedStep, value: str) -> str:
        """Emits checks for invalid values that `struct` accepts: null as a bool, a uuid of another size."""
        if step.code == "?":
            return f"+{value}"
        if step.code != "16s":
            return value
        uuid = self.source.fresh("u")
        self.source.line(f"{uuid} = {value}")
        self.source.line(f"if len({uuid}) != 16: refuse_uuid({uuid})")
        return uuid

    def flush(self) -> None:
        if self.codes == ["x"]:
            self.source.line("put(b'\\0')")
        elif self.codes:
            self.source.line(f"put({self.call(self.codes, self.values)})")
        self.codes, self.values = [], []

    def call(self, codes: list[str], values: list[str]) -> str:
        return f"{self.source.layout(codes, 'pack')}({', '.join(values)})"

    def length(self, step: TextStep | BlobStep | ArrayStep, length: str) -> None:
        """Emits the pending run, followed by a length."""
        codes, values = self.codes, self.values
        self.codes, self.values = [], []
        source = self.source
        if not step.compact:
            code = "h" if isinstance(step, TextStep) else "i"
            source.line(f"put({self.call([*codes, code], [*values, length])})")
            return
        long = f"{'long_text_length' if isinstance(step, TextStep) else 'long_length'}({length})"
        if codes:
            short = self.call([*codes, "B"], [*values, length])
            long = f"{self.call(codes, values)} + {long}"
        else:
            short = f"ONE_BYTE[{length}]"
        source.line(f"put({short} if {length} < 128 else {long})")

    def sized(self, step: TextStep | BlobStep, value: str) -> None:
        source = self.source
        data = source.fresh("d")
        if not step.nullable:
            self.present(step, value, data)
            return
        codes, values = self.codes, self.values
        source.line(f"{data} = {value}")
        with source.block(f"if {data} is None:"):
            if step.compact:
                self.codes = [*codes, "x"]
            else:
                self.codes, self.values = [*codes, "h" if isinstance(step, TextStep) else "i"], [*values, "-1"]
            self.flush()
        with source.block("else:"):
            self.codes, self.values = codes, values
            self.present(step, data, data)

    def present(self, step: TextStep | BlobStep, value: str, data: str) -> None:
        """Emits a value that is not null: a length and the bytes."""
        source = self.source
        length = source.fresh("n")
        encoded = f"{value}.encode()" if isinstance(step, TextStep) else value
        if encoded != data:
            source.line(f"{data} = {encoded}")
        if step.name.endswith("error_message"):
            source.line(f"if len({data}) > MAX_STRING: {data} = shortened({data})")
        source.line(f"{length} = len({data}){' + 1' if step.compact else ''}")
        self.length(step, length)
        source.line(f"put({data})")

    def array(self, step: ArrayStep, value: str) -> None:
        source = self.source
        items, length = source.fresh("a"), source.fresh("n")
        one = " + 1" if step.compact else ""
        source.line(f"{items} = {value}")
        if step.nullable:
            with source.block(f"if {items} is None:"):
                source.line(f"{length} = {0 if step.compact else -1}")
                source.line(f"{items} = ()")
            with source.block("else:"):
                source.line(f"{length} = len({items}){one}")
        else:
            source.line(f"{length} = len({items}){one}")
        element = step.element
        if isinstance(element, FixedStep) and len(element.code) == 1:
            self.numbers(step, element.code, items, length)
            return
        self.length(step, length)
        item = source.fresh("o")
        with source.block(f"for {item} in {items}:"):
            if isinstance(element, StructStep):
                self.struct(element.plan, item)
            else:
                self.step(element, item)
            self.flush()

    def numbers(self, step: ArrayStep, code: str, items: str, length: str) -> None:
        source = self.source
        many = f"pack(f'>{{len({items})}}{code}', *{items})"
        if step.compact and not self.codes:
            few = f"{source.few(runtime.few_counted_packs, code)}[len({items})]({length}, *{items})"
            source.line(f"put({few} if {length} <= FEW else long_length({length}) + {many})")
            return
        self.length(step, length)
        few = f"{source.few(runtime.few_packs, code)}[len({items})](*{items})"
        source.line(f"if {items}: put({few} if len({items}) < FEW else {many})")

    def nested(self, step: StructStep, value: str) -> None:
        source = self.source
        inner = source.fresh("o")
        if not step.nullable:
            source.line(f"{inner} = {value}")
            self.struct(step.plan, inner)
            return
        self.flush()
        source.line(f"{inner} = {value}")
        with source.block(f"if {inner} is None:"):
            source.line("put(b'\\xff')")
        with source.block("else:"):
            source.line("put(b'\\x01')")
            self.struct(step.plan, inner)
            self.flush()


def default_expression(source: Source, field: Any) -> str:
    default = field.default()
    if isinstance(default, list):
        return "[]"
    if default is None or isinstance(default, int | str | bytes | float):
        return repr(default)
    return source.constant("D", default)
