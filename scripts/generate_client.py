"""Writes the typed calls of the Python client (`sojourn_client/_api.py`) from the table of methods.

With `--check` it only says, by its exit code, whether the file is up to date.
"""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
import types
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from sojourn.core.values import Value
from sojourn.methods import _fields
from sojourn.methods._table import LSP_NAMESPACES, METHODS, Method

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "clients/python/sojourn_client/_api.py"

_BY_HAND = {
    _fields.PromptContent: "Content",
    _fields.ResultContent: "Content",
    _fields.ModelContent: "Content",
    _fields.InputMessage: "Message | Fields",
    _fields.RunPrompt: "Content | Message | Fields",
    _fields.ToolChoiceInput: "ToolChoice | Fields | str",
}
"""Fields that take more than their model says."""
_ORIGINS = {"Message": "sojourn.core.messages", "ToolChoice": "sojourn.core.messages"}

HEADER = '''"""The protocol's methods as typed calls. Written by `scripts/generate_client.py`; do not edit.

A parameter that is left out is not sent. Values may be given as models or as plain JSON in wire form.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, overload

from ._calls import UNSET, Caller, Namespace

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

{imports}

    from ._calls import Content, Fields, Unset
'''


class Renderer:
    """Types as source text; `imports` collects, by module, the names that the text needs."""

    def __init__(self) -> None:
        self.imports: dict[str, dict[str, str]] = {}

    def show(self, kind: Any, *, incoming: bool) -> str:
        """`kind` as source text; `incoming` ones may be given as plain JSON, too."""
        if get_origin(kind) is Annotated:
            by_hand = _BY_HAND.get(kind) if _hashable(kind) else None
            return self._named(by_hand) if by_hand else self.show(get_args(kind)[0], incoming=incoming)
        if isinstance(kind, type) and issubclass(kind, Value):
            name = self._import(kind)
            return f"{name} | Fields" if incoming else name
        if get_origin(kind) in (Union, types.UnionType):
            shown = [self.show(arg, incoming=incoming) for arg in get_args(kind)]
            names = dict.fromkeys(name for text in shown for name in text.split(" | "))
            names.pop("None", None)
            return " | ".join([*names, *(["None"] if type(None) in get_args(kind) else [])])
        if get_origin(kind) is tuple:
            return f"Sequence[{self.show(get_args(kind)[0], incoming=incoming)}]"
        return self._plain(kind)

    def _plain(self, kind: Any) -> str:
        if get_origin(kind) is Literal:
            return "Literal[" + ", ".join(f'"{arg}"' for arg in get_args(kind)) + "]"
        if get_origin(kind) is dict:
            return f"dict[str, {self.show(get_args(kind)[1], incoming=True)}]"
        return {type(None): "None", Any: "Any"}.get(kind) or kind.__name__

    def _named(self, text: str) -> str:
        for name, module in _ORIGINS.items():
            if name in text.split(" | "):
                self.imports.setdefault(module, {})[name] = name
        return text

    def _import(self, kind: type) -> str:
        taken = {shown: module for module, names in self.imports.items() for shown in names.values()}
        name = kind.__name__
        if taken.get(name, kind.__module__) != kind.__module__:
            name = kind.__module__.rpartition(".")[2].capitalize() + name
        return self.imports.setdefault(kind.__module__, {}).setdefault(kind.__name__, name)


def generate() -> str:
    """The whole file, formatted."""
    renderer = Renderer()
    spaces: dict[str, list[Method]] = {}
    for name, method in METHODS.items():
        if name.startswith(LSP_NAMESPACES):
            continue
        if "/" in name and not name.startswith(("$", "window")):
            spaces.setdefault(name.split("/")[0], []).append(method)
    classes = [_namespace(space, methods, renderer) for space, methods in sorted(spaces.items())]
    mutating = sorted(name for name, method in METHODS.items() if method.params.MUTATING)
    imports = "\n".join(_import_line(module, names) for module, names in sorted(renderer.imports.items()))
    text = HEADER.format(imports=textwrap.indent(imports, "    "))
    return _format(text + "\n\n".join(["", *classes, _api(sorted(spaces), mutating)]) + "\n")


def _import_line(module: str, names: dict[str, str]) -> str:
    shown = [name if name == alias else f"{name} as {alias}" for name, alias in sorted(names.items())]
    return f"from {module} import {', '.join(shown)}"


def _namespace(space: str, methods: list[Method], renderer: Renderer) -> str:
    lines = [f"class {space.capitalize()}Methods(Namespace):", f'    """`{space}/*`."""']
    for method in methods:
        lines += ["", textwrap.indent(_method(method, renderer), "    ")]
    return "\n".join(lines)


def _method(method: Method, renderer: Renderer) -> str:
    hints = get_type_hints(method.params, include_extras=True)
    parameters, body = [], []
    for name, field in sorted(method.params.model_fields.items(), key=lambda item: not item[1].is_required()):
        if name == "meta":
            continue
        shown = renderer.show(hints[name], incoming=True)
        parameters.append(f"{name}: {shown}" if field.is_required() else f"{name}: {_optional(shown)} = UNSET")
        body.append(f'"{field.alias}": {name}')
    result = "None" if method.result is None else renderer.show(method.result, incoming=False)
    name = re.sub(r"([A-Z])", r"_\1", method.name.split("/")[1]).lower()
    name += "_" if name == "import" else ""
    call = f'await self._call("{method.name}", {{{", ".join(body)}}})'
    overloads: list[str] = []
    if method.accepted is not None:
        accepted = renderer.show(method.accepted, incoming=False)
        overloads = _overloads(name, parameters, result, accepted)
        result += f" | {accepted}"
    lines = [*overloads, _head(name, parameters, result), _docstring(method.doc)]
    lines += [f"    {call}"] if method.result is None else [f"    result: {result} = {call}", "    return result"]
    return "\n".join(lines)


def _optional(shown: str) -> str:
    return shown.removesuffix(" | None") + " | Unset" + (" | None" if shown.endswith(" | None") else "")


def _head(name: str, parameters: list[str], result: str) -> str:
    shown = ", ".join(["self", *(["*", *parameters] if parameters else [])])
    return f"async def {name}({shown}) -> {result}:"


def _overloads(name: str, parameters: list[str], result: str, accepted: str) -> list[str]:
    others = [parameter for parameter in parameters if not parameter.startswith("wait:")]
    waiting = [*others, "wait: Literal[True] | Unset = UNSET"]
    return [
        f"@overload\n{_head(name, waiting, result)} ...",
        f"@overload\n{_head(name, [*others, 'wait: Literal[False]'], accepted)} ...",
    ]


def _docstring(doc: str) -> str:
    paragraphs = [" ".join(part.split()) for part in doc.split("\n\n")]
    lines = [line for part in paragraphs for line in [*textwrap.wrap(part, 108), ""]][:-1]
    text = '"""' + "\n".join(lines) + ('\n"""' if len(lines) > 1 else '"""')
    return textwrap.indent(text, "    ", lambda line: bool(line.strip()))


def _api(spaces: list[str], mutating: list[str]) -> str:
    lines = [
        "class Api(Caller):",
        '    """Every namespace of the protocol. `MUTATING` names the methods that take a `requestId`."""',
        "",
        "    MUTATING: ClassVar[frozenset[str]] = frozenset(",
        "        {" + ", ".join(f'"{name}"' for name in mutating) + ",}",
        "    )",
    ]
    for space in spaces:
        kind = f"{space.capitalize()}Methods"
        lines += ["", "    @cached_property", f"    def {space}(self) -> {kind}:", f'        """`{space}/*`."""']
        lines += [f"        return {kind}(self)"]
    return "\n".join(lines)


def _format(text: str) -> str:
    ruff = [sys.executable, "-m", "ruff"]
    for command in (["check", "--fix", "--quiet", "--select", "I,F401"], ["format", "--quiet"]):
        done = subprocess.run(  # noqa: S603 - our own formatter on our own text
            [*ruff, *command, "--stdin-filename", str(TARGET), "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
        )
        text = done.stdout
    return text


def _hashable(kind: Any) -> bool:
    try:
        hash(kind)
    except TypeError:
        return False
    return True


def main() -> int:
    """Writes the file, or checks it."""
    text = generate()
    if "--check" in sys.argv[1:]:
        return 0 if TARGET.exists() and TARGET.read_text() == text else 1
    TARGET.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
