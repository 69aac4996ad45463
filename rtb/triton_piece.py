"""What one piece of a Python file says by itself: its functions, imports, aliases, values and template strings.

Nothing here decides what is Triton; names are reported as written and `rtb.triton_source` resolves them.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field

from rtb.fingerprint import Fingerprint, FunctionNode, digest, hash_of, of_function, of_node
from rtb.python_source import Unreadable, parse
from rtb.syntax import nodes

_TEMPLATE_JIT = re.compile(r"^[ \t]*@(?:\w+\.)*jit\b", re.MULTILINE)
_TEMPLATE_MARK = re.compile(r"\{\{|\{%|%\(\w+\)s|\$\{|<<|\{[A-Za-z_]\w*\}")
_DEF_KERNEL = re.compile(r"\{\{\s*def_kernel\((.*?)\)\s*\}\}", re.DOTALL)
_DEF = re.compile(r"^[ \t]*def\s+(\w+)\s*(\([^)]*\))", re.MULTILINE)


@dataclass(frozen=True)
class Decorator:
    """One decorator: the dotted names that could be its meaning, and a digest of the whole expression."""

    names: tuple[str, ...]
    plain: bool
    digest: str
    loads: frozenset[str]


@dataclass(frozen=True)
class RawFunction:
    """A function as written. `launches` are the names in `name[grid](...)`."""

    name: str
    signature: str
    text: str
    shape: Fingerprint
    decorators: tuple[Decorator, ...] = ()
    launches: tuple[str, ...] = ()
    template: bool = False


@dataclass(frozen=True)
class Piece:
    """Facts of one piece. Every name is as written."""

    functions: tuple[RawFunction, ...] = ()
    imports: tuple[tuple[str, str], ...] = ()
    stars: tuple[str, ...] = ()
    aliases: tuple[tuple[str, tuple[str, ...]], ...] = ()
    jit_wrappers: tuple[tuple[str, str], ...] = ()
    jitted_by_call: tuple[tuple[str, str], ...] = ()
    values: Mapping[str, str] = field(default_factory=dict)
    value_names: frozenset[str] = frozenset()


def read_piece(text: str) -> Piece | Unreadable:
    """Parse a piece and collect its facts, or say why it does not parse."""
    tree = parse(text)
    if isinstance(tree, Unreadable):
        return tree
    reader = _Reader(text)
    try:
        reader.block(tree.body, ())
    except RecursionError:
        return Unreadable("syntax_error", "nested too deeply")
    return reader.result()


def read_jinja(name: str, text: str) -> RawFunction | None:
    """The kernel of a Jinja file, or None when the file holds none."""
    if not _DEF_KERNEL.search(text) and not _TEMPLATE_JIT.search(text):
        return None
    return _template(name, text)


def dotted(node: ast.expr) -> str | None:
    """`a.b.c` of a name or attribute chain, else None."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    parts.append(node.id)
    return ".".join(reversed(parts))


class _Reader:
    """Walks a syntax tree once, keeping track of where it is."""

    def __init__(self, text: str) -> None:
        self._lines = text.split("\n")
        self._seeks_calls = "jit(" in text
        self._seeks_strings = "def_kernel" in text or (_TEMPLATE_JIT.search(text) and _TEMPLATE_MARK.search(text))
        self._parameters: list[frozenset[str]] = []
        self._functions: list[RawFunction] = []
        self._imports: list[tuple[str, str]] = []
        self._stars: list[str] = []
        self._aliases: list[tuple[str, tuple[str, ...]]] = []
        self._jit_wrappers: list[tuple[str, str]] = []
        self._by_call: list[tuple[str, str]] = []
        self._values: dict[str, str] = {}
        self._value_names: set[str] = set()

    def result(self) -> Piece:
        return Piece(
            tuple(self._functions),
            tuple(self._imports),
            tuple(self._stars),
            tuple(self._aliases),
            tuple(self._jit_wrappers),
            tuple(self._by_call),
            self._values,
            frozenset(self._value_names),
        )

    def block(self, body: list[ast.stmt], scope: tuple[str, ...]) -> None:
        """Statements of one block; `scope` is the qualified name so far."""
        for statement in body:
            self._statement(statement, scope)

    def _statement(self, node: ast.stmt, scope: tuple[str, ...]) -> None:
        if isinstance(node, FunctionNode):
            self._function(node, scope)
        elif isinstance(node, ast.ClassDef):
            self.block(node.body, (*scope, node.name))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            self._import(node)
        else:
            if isinstance(node, ast.Assign | ast.AnnAssign):
                self._assignment(node, scope)
            self._expressions(node, scope)
            for part in ("body", "orelse", "finalbody"):
                self.block([item for item in getattr(node, part, []) if isinstance(item, ast.stmt)], scope)
            for handler in [*getattr(node, "handlers", []), *getattr(node, "cases", [])]:
                self.block(handler.body, scope)

    def _function(self, node: FunctionNode, scope: tuple[str, ...]) -> None:
        name = (*scope, node.name)
        first = min([node.lineno, *(item.lineno for item in node.decorator_list)])
        source = "\n".join(self._lines[first - 1 : node.end_lineno])
        self._functions.append(
            RawFunction(
                name=".".join(name),
                signature=f"({ast.unparse(node.args)})",
                text=digest(source),
                shape=of_function(node),
                decorators=tuple(map(_decorator, node.decorator_list)),
                launches=_launches(node) if "](" in source else (),
            )
        )
        self._parameters.append(frozenset(item.arg for item in (*node.args.posonlyargs, *node.args.args)))
        self.block(node.body, (*name, "<locals>"))
        self._parameters.pop()

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.Import):
            for item in node.names:
                root = item.name.split(".")[0]
                self._imports.append((item.asname, item.name) if item.asname else (root, root))
            return
        module = "." * node.level + (node.module or "")
        for item in node.names:
            if item.name == "*":
                self._stars.append(module)
            else:
                joint = "" if module.endswith(".") or not module else "."
                self._imports.append((item.asname or item.name, f"{module}{joint}{item.name}"))

    def _assignment(self, node: ast.Assign | ast.AnnAssign, scope: tuple[str, ...]) -> None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = [item.id for item in targets if isinstance(item, ast.Name)]
        if node.value is None or not names:
            return
        references = _meanings(node.value)
        for name in names:
            if references:
                self._aliases.append((name, references))
            if not scope:
                self._values[name] = self._values.get(name, "") + of_node(node.value)  # under if and else
                self._value_names |= {item.id for item in nodes(node.value) if isinstance(item, ast.Name)}

    def _expressions(self, node: ast.stmt, scope: tuple[str, ...]) -> None:
        """Calls of the form `jit(f)` and template strings in one statement's own expressions."""
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return  # a docstring or a string used as a comment: examples, not code
        if not self._seeks_calls and not self._seeks_strings:
            return
        for item in _shallow(node):
            if isinstance(item, ast.Call):
                self._call(item, scope)
            elif isinstance(item, ast.Constant) and isinstance(item.value, str):
                self._string(item.value, node)

    def _call(self, node: ast.Call, scope: tuple[str, ...]) -> None:
        name = dotted(node.func)
        if name is None or len(node.args) != 1 or not isinstance(node.args[0], ast.Name):
            return
        if not name.endswith("jit"):
            return
        argument = node.args[0].id
        if self._parameters and argument in self._parameters[-1]:
            self._jit_wrappers.extend((outer, name) for outer in scope if outer != "<locals>")
        else:
            self._by_call.append((name, argument))

    def _string(self, text: str, statement: ast.stmt) -> None:
        if len(text) < 40:
            return
        is_template = _DEF_KERNEL.search(text) or (_TEMPLATE_JIT.search(text) and _TEMPLATE_MARK.search(text))
        if is_template:
            self._functions.append(_template(_template_name(statement), text))


def _shallow(node: ast.stmt) -> list[ast.AST]:
    """The nodes of a statement's own expressions, without the statements inside it."""
    found: list[ast.AST] = []
    waiting: list[ast.AST] = [item for item in ast.iter_child_nodes(node) if not isinstance(item, ast.stmt)]
    while waiting:
        item = waiting.pop()
        if isinstance(item, ast.stmt | ast.ExceptHandler | ast.match_case):
            continue
        found.append(item)
        waiting.extend(ast.iter_child_nodes(item))
    return found


def _decorator(node: ast.expr) -> Decorator:
    loads = frozenset(item.id for item in nodes(node) if isinstance(item, ast.Name))
    names = _meanings(node)
    bare = node.func if isinstance(node, ast.Call) and not node.args and not node.keywords else node
    return Decorator(names, dotted(bare) is not None, of_node(node), loads)


def _meanings(node: ast.expr) -> tuple[str, ...]:
    """Dotted names an expression can stand for: `jit`, `jit(...)`, `partial(jit)`, `jit if c else d`, `wrap(jit)`."""
    name = dotted(node)
    if name is not None:
        return (name,)
    if isinstance(node, ast.IfExp):
        return _meanings(node.body) + _meanings(node.orelse)
    if isinstance(node, ast.BoolOp):
        return tuple(name for item in node.values for name in _meanings(item))
    if isinstance(node, ast.Call):
        called = dotted(node.func)
        own = (called,) if called is not None else _meanings(node.func)
        passed = tuple(name for item in node.args if (name := dotted(item)) is not None and name.endswith("jit"))
        return own + passed
    return ()


def _launches(function: FunctionNode) -> tuple[str, ...]:
    """Names of what is launched by `kernel[grid](...)` or `wrap(kernel)[grid](...)`; local variables are followed."""
    own = [node for statement in function.body for node in nodes(statement)]
    called = [node.func for node in own if node.__class__ is ast.Call and isinstance(node.func, ast.Subscript)]
    if not called:
        return ()
    local: dict[str, list[str]] = {}
    for node in own:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            local.setdefault(node.targets[0].id, []).extend(_kernel_names(node.value))
    names = sorted({name for item in called for name in _kernel_names(item.value)})
    return tuple(dict.fromkeys(found for name in names for found in local.get(name) or [name]))


def _kernel_names(node: ast.expr) -> list[str]:
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute):
        return [node.attr]
    if isinstance(node, ast.IfExp):
        return _kernel_names(node.body) + _kernel_names(node.orelse)
    if isinstance(node, ast.Call) and node.args:
        return _kernel_names(node.args[0])
    return []


def _template_name(statement: ast.stmt) -> str:
    """The name a template goes by: what it is assigned to, else its `name=`."""
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id
    for node in ast.walk(statement):
        if isinstance(node, ast.keyword) and node.arg == "name" and isinstance(node.value, ast.Constant):
            return str(node.value.value)
    return "<template>"


def _template(name: str, text: str) -> RawFunction:
    """A template by its lines: comment lines, blank lines and indentation of the whole do not count."""
    lines = [line.rstrip() for line in textwrap.dedent(text).splitlines()]
    lines = [line for line in lines if line and not line.lstrip().startswith("#")]
    head = _DEF_KERNEL.search(text)
    signature = f"({' '.join(head[1].split())})" if head else ""
    if not head and (written := _DEF.search(text)):
        signature = " ".join(written[2].split())
    body = digest("\n".join(lines))
    marks = tuple(hash_of(line) for line in lines)
    shape = Fingerprint(body, digest(signature), digest(signature), body, (), marks)
    return RawFunction(name=name, signature=signature, text=digest(text), shape=shape, template=True)
