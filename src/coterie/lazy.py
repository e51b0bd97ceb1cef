"""Names of a package that are imported when first used, listed once: in the package's `__init__.pyi`.

The stub is what type checkers and editors read; here it is read again as the table of what lives where. So a public name is
written in one place, the estimators need no torch, and `coterie --help` answers at once.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def attach(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` for a package whose `__init__.pyi` imports its public names."""
    homes: dict[str, tuple[str, str]] = {}
    for node in ast.parse(Path(file).with_suffix(".pyi").read_text("utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            homes |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}
        elif (
            isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Name)
        ):
            homes[node.targets[0].id] = homes.pop(node.value.id)  # a room under another public name

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home, original = homes[name]
        value = getattr(None if home == package else import_module(home), original, None)
        if value is None:  # the name is a module
            value = import_module(f"{home}.{original}")
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return load, names, sorted(homes)
