"""Messages as bytes: one safetensors block whose header holds plain values as JSON. Nothing in it can run.

A client function goes by its place in the algorithm: `base.train` is the method `train` of the field `base`. Only methods of
the algorithm that both sides built from the same file can be named.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from coterie.base.disk import said
from coterie.base.tree import Tree, flatten, unflatten
from coterie.errors import ClientError, ConfigError

PROTOCOL = 2  # grows when hubs and sites of two versions no longer understand each other
_HEAD, _ORDER = "head", "order"  # safetensors sorts its tensors; vectors of models are in the order of their names
_MOST_HEAD = 64 << 20
_DEEPEST = 32  # of names in names
ODD = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)  # errors of malformed headers
_MOST_TEXT = 300  # characters that are shown of a text from others


class Malformed(ClientError):
    """A message cannot be used; the sentence says why."""


def pack(head: dict[str, Any], tree: Tree | None = None) -> bytes:
    flat = flatten(tree or {})
    tensors = {name: torch.as_tensor(t).detach().contiguous().clone() for name, t in flat.items()}
    return bytes(save(tensors, {_HEAD: json.dumps(head), _ORDER: json.dumps(list(tensors))}))


def unpack(block: Any, most: int | None = None) -> tuple[dict[str, Any], Tree]:
    """The plain values and the tensors of a message; malformed bytes are refused with one sentence."""
    if not isinstance(block, bytes):
        raise Malformed(f"A message is bytes; got {type(block).__name__}.")
    if most is not None and len(block) > most:
        raise Malformed(f"A message here has at most {most} bytes; got {len(block)}.")
    try:
        size = int.from_bytes(block[:8], "little")
        if size > min(len(block), _MOST_HEAD):
            raise Malformed("the header is longer than the message")
        header = json.loads(block[8 : 8 + size])
        head, order = (json.loads(header["__metadata__"][name]) for name in (_HEAD, _ORDER))
        tensors = load(block)
        if (
            not isinstance(head, dict)
            or sorted(order) != sorted(tensors)
            or any(n.count("/") > _DEEPEST for n in order)
        ):
            raise Malformed("the header does not fit the message")
        return head, unflatten({name: tensors[name] for name in order})
    except (SafetensorError, Malformed, *ODD) as error:
        raise Malformed(f"A message could not be read: {said(error)}.") from None


def one_line(text: Any) -> str:
    """A text from others, cut for a sentence or a log, without characters that control a terminal or change the
    direction of the text."""
    line = " ".join("".join(" " if _steers(c) else c for c in str(text)[: 4 * _MOST_TEXT]).split())
    return line if len(line) <= _MOST_TEXT else line[: _MOST_TEXT - 1] + "…"


def _steers(c: str) -> bool:
    """Controls (C0, C1), invisible formats with the bidirectional overrides among them, halves of characters, and separators
    of lines."""
    return unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")


def place_of(algorithm: Any, phase: Callable[..., Any]) -> str:
    """The place of a client function in an algorithm."""
    owner, name = getattr(phase, "__self__", None), getattr(phase, "__name__", "")
    parts = list(_parts(algorithm, ""))
    alike = [place for place, part in parts if type(part) is type(owner) and part == owner]
    for place in alike or [place for place, part in parts if type(part) is type(owner)]:
        return f"{place}{name}"
    raise ConfigError(
        f"A deployed algorithm asks with its own methods; {name or phase!r} is not a method of {type(algorithm).__name__}. "
        "Make it a method of the algorithm, of an algorithm in one of its fields, or of one of its helpers."
    )


def function_at(algorithm: Any, place: str) -> Callable[..., Any]:
    """The client function at a place."""
    for where, part in _parts(algorithm, ""):
        name = place.removeprefix(where)
        if place.startswith(where) and name.isidentifier() and not name.startswith("_"):
            found: Callable[..., Any] | None = getattr(part, name, None)
            if callable(getattr(type(part), name, None)) and found is not None:
                return found
    raise Malformed(f"There is no client function {place!r} in {type(algorithm).__name__}.")


def _parts(part: Any, place: str) -> Iterator[tuple[str, Any]]:
    """An algorithm, its helpers, and the algorithms in its fields, with their places."""
    yield place, part
    for name, helper in getattr(part, "helpers", {}).items():
        yield f"{place}{name}.", helper
    for f in fields(part) if is_dataclass(part) else ():
        inner = getattr(part, f.name)
        if is_dataclass(inner) and not isinstance(inner, type) and hasattr(inner, "round"):
            yield from _parts(inner, f"{place}{f.name}.")
