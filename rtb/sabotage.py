"""Sabotage: source text in which a task's target is wrong, or slow. The control that a sound stage must notice.

Pure: bytes in, bytes out. Every change is an insertion found through the syntax tree, so the rest of the file keeps
its bytes. Four kinds:

- `scale`: results are doubled and shifted by three. Whole numbers, so that integers stay integers in Triton.
- `drop_rows`: every other program (kernel) or row (host function) gives zeros. Zeros and not a narrowed mask, because
  memory that is left unwritten may hold the right answer of an earlier run.
- `low_precision`: intermediate float32 values go through bfloat16.
- `busy_loop`: same results, later. `Effort` says by how much.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from rtb import syntax
from rtb.errors import ExpectedError
from rtb.sabotage_host import HELPERS, OUTPUT_NAMES
from rtb.task import Target

Sabotage = Literal["scale", "drop_rows", "low_precision", "busy_loop"]
SABOTAGES: tuple[Sabotage, ...] = ("scale", "drop_rows", "low_precision", "busy_loop")

Function = ast.FunctionDef | ast.AsyncFunctionDef

# Argument 1 of each is the value, also for `descriptor.store(offsets, value)`.
_STORES: Final = ("store", "store_tensor_descriptor", "_experimental_descriptor_store")
_LANGUAGE: Final = frozenset({"load", "store", "program_id", "arange", "constexpr", "zeros", "dot", "float32"})
# No pure function of the program id reaches this value often, and no compiler can tell that it does not.
_NEVER: Final = 123456789


class CannotSabotage(ExpectedError):
    """A target that cannot be made wrong in this way. The message says why."""


@dataclass(frozen=True)
class Effort:
    """How long a busy loop keeps each call of a target: turns that each program of a kernel takes, and microseconds
    of a host function. Two numbers, since a turn lasts two thousand times longer in the interpreter."""

    turns: int = 64
    microseconds: int = 64


CPU_EFFORT: Final = Effort()


@dataclass(frozen=True)
class Sabotaged:
    """Changed files only. `done` and `impossible` name targets as path::name."""

    files: dict[str, bytes]
    done: tuple[str, ...]
    impossible: dict[str, str]


def sabotage_files(
    files: Mapping[str, bytes], targets: Sequence[Target], kind: Sabotage, effort: Effort = CPU_EFFORT
) -> Sabotaged:
    """Sabotage every target that allows it. `files` holds the gold tree's files by path.

    Raises CannotSabotage, with each reason, when no target allows it.
    """
    changed: dict[str, bytes] = {}
    done: list[str] = []
    impossible: dict[str, str] = {}
    for target in targets:
        label = f"{target.path}::{target.name}"
        source = changed.get(target.path, files.get(target.path))
        if source is None:
            impossible[label] = "the file is not in the tree"
            continue
        try:
            changed[target.path] = sabotage(source, target, kind, effort)
            done.append(label)
        except CannotSabotage as error:
            impossible[label] = str(error)
    if not done:
        reasons = "; ".join(impossible.values()) or "the task names no target"
        raise CannotSabotage(f"no target can be sabotaged with {kind}: {reasons}")
    return Sabotaged(changed, tuple(done), impossible)


def sabotage(source: bytes, target: Target, kind: Sabotage, effort: Effort = CPU_EFFORT) -> bytes:
    """A file's bytes with one target sabotaged. Raises CannotSabotage when the target has no place for it."""
    text = _Text(source, f"{target.path}::{target.name}")
    function = text.function(target)
    if target.kind == "triton_kernel":
        _edit_kernel(text, function, kind, effort)
    else:
        _edit_host(text, function, kind, effort)
    return text.result()


class _Text:
    """A source file with insertions to be made. Offsets are bytes of its UTF-8 form, as `ast` counts them."""

    def __init__(self, source: bytes, label: str) -> None:
        self.label = label
        try:
            self.encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
            self.data = source.decode(self.encoding).encode()
            self.tree = syntax.parse(self.data.decode())  # as text: a coding cookie no longer holds
        except (SyntaxError, ValueError) as error:
            raise CannotSabotage(f"{label}: the file cannot be read as Python ({error})") from error
        self.starts = _line_starts(self.data)
        self.insertions: list[tuple[int, int, bytes]] = []

    def error(self, reason: str) -> CannotSabotage:
        return CannotSabotage(f"{self.label}: {reason}")

    def function(self, target: Target) -> Function:
        found = [node for name, node in _functions(self.tree.body, ()) if name == target.name]
        if len(found) <= target.index:
            raise self.error(f"the file has {len(found)} functions of this name, index {target.index} is wanted")
        return found[target.index]

    def offset(self, line: int, column: int) -> int:
        return self.starts[line - 1] + column

    def start(self, node: ast.expr | ast.stmt) -> int:
        return self.offset(node.lineno, node.col_offset)

    def end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self.offset(node.end_lineno, node.end_col_offset)

    def source_of(self, node: ast.expr | ast.stmt) -> str:
        return self.data[self.start(node) : self.end(node)].decode()

    def insert(self, offset: int, text: str) -> None:
        self.insertions.append((offset, len(self.insertions), text.encode()))

    def wrap(self, node: ast.expr, before: str, after: str) -> None:
        self.insert(self.start(node), before)
        self.insert(self.end(node), after)

    def indent(self, node: ast.stmt) -> str:
        """What stands before a statement on its line. Raises CannotSabotage when that is more than white space."""
        before = self.data[self.offset(node.lineno, 0) : self.start(node)].decode()
        if before.strip():
            raise self.error(f"line {node.lineno} has more than one statement")
        return before

    def result(self) -> bytes:
        data = self.data
        for offset, _, text in sorted(self.insertions, reverse=True):
            data = data[:offset] + text + data[offset:]
        try:
            syntax.parse(data.decode())
        except SyntaxError as error:
            raise self.error(f"the change would not be Python (line {error.lineno})") from error
        return data.decode().encode(self.encoding)


def _line_starts(data: bytes) -> list[int]:
    starts = [0]
    for position, byte in enumerate(data):
        if byte == 10 or (byte == 13 and data[position + 1 : position + 2] != b"\n"):
            starts.append(position + 1)
    return starts


def _functions(body: Sequence[ast.stmt], scope: tuple[str, ...]) -> Iterator[tuple[str, Function]]:
    """Every function with its qualified name, in the order of the file."""
    for node in body:
        if isinstance(node, Function):
            yield ".".join((*scope, node.name)), node
            yield from _functions(node.body, (*scope, node.name, "<locals>"))
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node.body, (*scope, node.name))
        else:
            for field in ("body", "orelse", "handlers", "finalbody", "cases"):
                for inner in getattr(node, field, ()):
                    blocks = inner.body if isinstance(inner, ast.ExceptHandler | ast.match_case) else [inner]
                    yield from _functions(blocks, scope)


def _own_nodes(function: Function) -> Iterator[ast.AST]:
    """Nodes of a function's body, without those of functions and classes inside it."""
    waiting: list[ast.AST] = list(reversed(function.body))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, Function | ast.ClassDef | ast.Lambda):
            waiting.extend(reversed(list(ast.iter_child_nodes(node))))


def _first_statement(text: _Text, function: Function) -> ast.stmt:
    """The first statement after the docstring."""
    body = function.body
    documented = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
    if documented and len(body) == 1:
        raise text.error("the function has no body")
    return body[1] if documented else body[0]


def _edit_kernel(text: _Text, function: Function, kind: Sabotage, effort: Effort) -> None:
    language = _language_alias(function) or _language_alias(text.tree) or "tl"
    if kind == "low_precision":
        _lower_precision(text, function, language)
        return
    values, stored = _result_values(function)
    if not values:
        raise text.error("the kernel neither stores nor returns a value itself")
    if kind == "scale" and stored:
        # Tensors of small integers, and not plain numbers: of a plain number beside a bfloat16 tensor the interpreter
        # makes a bfloat16 constant, which it cannot up to Triton 3.6 at least, so that the twin would die in place
        # of being wrong. Small, so that no value becomes wider.
        zero = f"{language}.program_id(0) * 0"
        after = f") * ({zero} + 2).to({language}.int8) + ({zero} + 3).to({language}.int8))"
    elif kind == "scale":
        after = ") * 2 + 3)"  # what is returned may have to be known when the kernel is compiled
    elif kind == "drop_rows":
        after = f") * ({language}.program_id(0) % 2 != 0))"
    else:
        _insert_kernel_loop(text, function, language, effort.turns)
        after = f") + (_rtb_spin == {_NEVER}))"
    for value in values:
        text.wrap(value, "((", after)


def _language_alias(tree: ast.AST) -> str:
    """The name `triton.language` goes by: the one whose attributes look like it most often. Empty when none does."""
    counts: dict[str, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in _LANGUAGE:
            name = ast.unparse(node.value)
            if name.replace(".", "").replace("_", "").isalnum():
                counts[name] = counts.get(name, 0) + 1
    return max(counts, key=lambda name: counts[name]) if counts else ""


def _result_values(function: Function) -> tuple[list[ast.expr], bool]:
    """What a kernel gives back: values stored, else values added atomically, else values returned (False)."""
    calls = [node for node in _own_nodes(function) if isinstance(node, ast.Call)]
    stored = [value for call in calls if (value := _stored_value(call, _STORES)) is not None]
    added = [value for call in calls if (value := _stored_value(call, ("atomic_add",))) is not None]
    returned: list[ast.expr] = []
    for node in _own_nodes(function):
        if isinstance(node, ast.Return) and node.value is not None:
            returned += node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
    return (stored or added, True) if stored or added else (returned, False)


def _stored_value(call: ast.Call, names: Sequence[str]) -> ast.expr | None:
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in names:
        return None
    named = [keyword.value for keyword in call.keywords if keyword.arg in ("value", "val")]
    plain = call.args[:2]
    if any(isinstance(argument, ast.Starred) for argument in plain):
        return None
    return named[0] if named else (plain[1] if len(plain) == 2 else None)


def _insert_kernel_loop(text: _Text, function: Function, language: str, turns: int) -> None:
    """A chain of shifts that no compiler solves in closed form, and that cannot overflow an integer."""
    first = _first_statement(text, function)
    indent = text.indent(first)
    step = "_rtb_spin = _rtb_spin ^ (_rtb_spin {0})"
    lines = [
        f"{indent}_rtb_spin = {language}.program_id(0) + 1",
        f"{indent}for _rtb_turn in range(0, {turns}):",
        *(f"{indent}    {step.format(shift)}" for shift in ("<< 13", ">> 17", "<< 5")),
    ]
    text.insert(text.offset(first.lineno, 0), "".join(f"{line}\n" for line in lines))


def _lower_precision(text: _Text, function: Function, language: str) -> None:
    """Round float32 values to bfloat16 on the way: casts, and accumulators after each change. Types stay."""
    wide, narrow = f"{language}.float32", f".to({language}.bfloat16)"
    accumulators: set[str] = set()
    changed = 0
    for node in _own_nodes(function):
        if (inner := _cast_to(node, wide)) is not None:
            text.insert(text.end(inner), narrow)
            changed += 1
        elif isinstance(node, ast.Assign | ast.AugAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if not isinstance(target, ast.Name):
                continue
            if isinstance(node, ast.Assign) and _makes_block(node.value, language, wide):
                accumulators.add(target.id)
            elif target.id in accumulators:
                text.insert(text.end(node), f"; {target.id} = {target.id}{narrow}.to({wide})")
                changed += 1
    if not changed:
        raise text.error("the kernel has no cast to float32 and no float32 accumulator")


def _cast_to(node: ast.AST, wide: str) -> ast.expr | None:
    """The `x` of `x.to(tl.float32)`. What it was does not matter: the cast that follows gives float32 again."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "to":
        return None
    return node.func.value if node.args and ast.unparse(node.args[0]) == wide else None


def _makes_block(value: ast.expr, language: str, wide: str) -> bool:
    if not isinstance(value, ast.Call) or ast.unparse(value.func) not in (f"{language}.zeros", f"{language}.full"):
        return False
    return any(ast.unparse(item) == wide for item in (*value.args, *(word.value for word in value.keywords)))


def _edit_host(text: _Text, function: Function, kind: Sabotage, effort: Effort) -> None:
    """Spoil what a host function returns; when it returns nothing, spoil the parameter that looks like its output."""
    if any(isinstance(node, ast.Yield | ast.YieldFrom) for node in _own_nodes(function)):
        raise text.error("the function is a generator")
    helper = f"_rtb_{kind}"
    if kind == "busy_loop":
        first = _first_statement(text, function)
        text.insert(text.offset(first.lineno, 0), f"{text.indent(first)}{helper}({effort.microseconds})\n")
    else:
        _spoil_results(text, function, helper)
    _insert_helper(text, function, HELPERS[kind])


def _spoil_results(text: _Text, function: Function, helper: str) -> None:
    returns = [node for node in _own_nodes(function) if isinstance(node, ast.Return)]
    valued = [node.value for node in returns if node.value is not None and not _is_none(node.value)]
    if valued:
        for value in valued:
            text.wrap(value, f"{helper}((", "))")
        return
    names = [item.arg for item in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
    outputs = [name for name in names if OUTPUT_NAMES.fullmatch(name)]
    if not outputs:
        raise text.error("the function returns nothing and no parameter looks like its output")
    call = f"{helper}({', '.join(outputs)}, in_place=True)"
    for node in returns:
        text.insert(text.start(node) + len("return"), f" {call} or")
        if node.value is None:
            text.insert(text.end(node), " None")
    last = function.body[-1]
    if not isinstance(last, ast.Return):
        text.insert(text.end(last), f"\n{text.indent(function.body[0])}{call}")


def _is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def _insert_helper(text: _Text, function: Function, helper: str) -> None:
    """Put the helper before the top-level statement that holds the function, unless it is there already."""
    if helper.encode() in text.data:
        return
    holders = [
        node for node in text.tree.body
        if node.lineno <= function.lineno <= (node.end_lineno or node.lineno)
    ]  # fmt: skip
    lines = [holders[0].lineno, *(item.lineno for item in getattr(holders[0], "decorator_list", ()))]
    text.insert(text.offset(min(lines), 0), helper)
