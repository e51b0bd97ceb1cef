"""Names of a package that are imported when first used, listed once: in the package's `__init__.pyi`.

Type checkers and editors read the stub, and this module reads it as the table of names and their modules. So a public name
is written in one place, the estimators need no torch, and `coterie --help` answers at once.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def homes(file: str) -> dict[str, tuple[str, str]]:
    """Public name → its module and its name there, from the stub beside a package's `__init__.py`: `import A as A`."""
    stub, found = Path(file).with_suffix(".pyi"), dict[str, tuple[str, str]]()
    for node in ast.parse(stub.read_text("utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.names[0].name == "*":
            room = stub.parent.joinpath(*node.module.split(".")[1:])  # all names of a room of this package
            found |= {name: (node.module, name) for name in homes(str(room / stub.name))}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {alias.asname: (node.module, alias.name) for alias in node.names if alias.asname}
        elif (
            isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Name)
        ):
            found[node.targets[0].id] = found.pop(node.value.id)  # a room under another public name
    return found


def attach(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` for a package whose `__init__.pyi` imports its public names."""
    found = homes(file)

    def load(name: str) -> Any:
        if name not in found:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home, original = found[name]
        value = getattr(None if home == package else import_module(home), original, None)
        if value is None:  # the name is a module
            value = import_module(f"{home}.{original}")
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted([*found, *(name for name in vars(sys.modules[package]) if name.startswith("__"))])

    return load, names, sorted(found)
