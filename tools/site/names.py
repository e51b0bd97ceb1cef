"""Every public name of coterie and the page of the reference that shows it.

A name comes from `coterie/__init__.pyi`, a name of a module from the module's `__all__`, or from what it defines itself.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import coterie as ct

ROOT = Path(__file__).parents[2]

PAGES = {  # page: (title, rooms whose names of `ct` it shows, modules it shows as a whole)
    "training": (
        "Training and comparing",
        ("training", "comparison"),
        ("training", "comparison", "coterie.report.page"),
    ),
    "algorithms": ("Algorithms", ("algorithms",), ()),
    "data": ("Data", ("data",), ("datasets",)),
    "learning": ("Tasks, models, metrics", ("learning",), ("models", "metrics", "schedules")),
    "exchange": ("Messages between server and clients", ("exchange",), ("exchange",)),
    "channels": ("Channels and attacks", (), ("coterie.exchange.channels", "coterie.exchange.channels.attacks")),
    "robust": ("Robust aggregation", ("aggregation",), ("robust",)),
    "estimation": ("Estimation", ("estimation",), ("histograms", "estimation")),
    "privacy": ("Privacy", ("privacy",), ("privacy",)),
    "incentives": ("Incentives", (), ("incentives",)),
    "rest": ("Engines, trees, errors", (), ("engines", "coterie.base.tree", "errors")),
}


@dataclass(frozen=True)
class Name:
    """A public name: what users write, and where it is defined."""

    shown: str
    path: str

    @property
    def thing(self) -> Any:
        module, _, last = self.path.rpartition(".")
        return getattr(importlib.import_module(module), last)


def public() -> dict[str, list[Name]]:
    """The names by page; a name that belongs to no page is an error."""
    rooms = {room: page for page, (_, own, _) in PAGES.items() for room in own}
    pages: dict[str, list[Name]] = {page: [] for page in PAGES}
    for name in ct.__all__:
        thing = getattr(ct, name)
        if isinstance(thing, ModuleType):
            continue
        path = f"{thing.__module__}.{thing.__name__}"
        pages[rooms[path.split(".")[1]]].append(Name(f"ct.{name}", path))
    for page, (_, _, modules) in PAGES.items():
        for module in modules:
            known = {one.path for names in pages.values() for one in names}
            pages[page] += [one for one in _of_module(module) if one.path not in known]
    missing = {n for n in ct.__all__ if isinstance(getattr(ct, n), ModuleType)} - {
        m for _, _, modules in PAGES.values() for m in modules
    }
    assert not missing, f"Public modules without a page of the reference: {sorted(missing)}. Add them to PAGES."
    return pages


def _of_module(name: str) -> list[Name]:
    module = importlib.import_module(name) if "." in name else getattr(ct, name)
    shown = f"ct.{name}" if "." not in name else name
    names = getattr(module, "__all__", None) or [
        n for n, v in vars(module).items() if not n.startswith("_") and _own(module, n, v)
    ]
    room = module.__name__.split(".")[1]
    found = [Name(f"{shown}.{n}", _path(module, n)) for n in names if n.isupper() or _is_code(getattr(module, n))]
    return [
        one for one in found if one.path.split(".")[1] == room
    ]  # what comes from another room is on that room's page


def _is_code(value: Any) -> bool:
    return inspect.isclass(value) or inspect.isfunction(value)


def _own(module: ModuleType, name: str, value: Any) -> bool:
    """Defined here, or brought here to be public (`from x import y as y`), or a registry."""
    if _is_code(value):
        return value.__module__ == module.__name__ or name in _exported(module)
    return name.isupper() and isinstance(value, dict | set | tuple | frozenset)


def _exported(module: ModuleType) -> set[str]:
    tree = ast.parse(Path(str(module.__file__)).read_text("utf-8"))
    return {a.name for node in tree.body if isinstance(node, ast.ImportFrom) for a in node.names if a.asname == a.name}


def _path(module: ModuleType, name: str) -> str:
    value = getattr(module, name)
    if _is_code(value):
        return f"{value.__module__}.{value.__name__}"
    return f"{module.__name__}.{name}"
