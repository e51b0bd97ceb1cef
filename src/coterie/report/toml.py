"""Plain values as TOML (the standard library only reads it)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def toml_text(sections: Mapping[str, Any]) -> str:
    """{"data": {"path": "a.csv"}} as sections and keys. What is None is left out."""
    lines: list[str] = []
    for name, values in sections.items():
        lines += [f"[{name}]", *(f"{_key(k)} = {_value(v)}" for k, v in values.items() if v is not None), ""]
    return "\n".join(lines)


def _key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() and name.isascii() else _value(name)


def _value(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(v) for v in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(str(k))} = {_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, str):  # a JSON string is a TOML string, but for one control character
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value)
