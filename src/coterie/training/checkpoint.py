"""Checkpoints: one safetensors file with a JSON header, written beside and moved into place, so it is whole or absent."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from coterie.engines.base import ClientStates
from coterie.errors import ConfigError
from coterie.tree import flatten, unflatten

FILE = "checkpoint.safetensors"


def write(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Atomic: a reader, or a run killed at any moment, sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    own: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, t in tensors.items():  # two names for one memory (a start model kept twice) are written twice
        t = t.detach().contiguous()
        place = t.untyped_storage().data_ptr()
        own[name] = t.clone() if place in storages else t
        storages.add(place)
    save_file(own, str(partial), {"about": json.dumps(about), "order": json.dumps(list(own))})
    with open(partial, "rb") as file:
        os.fsync(file.fileno())
    os.replace(partial, path)


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    if not path.exists():
        raise ConfigError(f"There is no checkpoint at {path}. Start the run without resume.")
    try:
        with safe_open(str(path), "pt") as file:
            about = json.loads(file.metadata()["about"])
            return {name: file.get_tensor(name) for name in json.loads(file.metadata()["order"])}, about
    except Exception as error:
        raise ConfigError(
            f"The file {path} is not a readable checkpoint: {error}. Delete it and start again."
        ) from None


def pack(state: Any, states: ClientStates) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Server state and clients' states as named tensors, and the plain values beside them."""
    tensors: dict[str, Tensor] = {"clients/row": torch.from_numpy(states.row)}
    plain: dict[str, Any] = {}
    for f in fields(state):
        for path, value in flatten(getattr(state, f.name), f.name).items():
            if isinstance(value, Tensor):
                tensors[f"state/{path}"] = value
            elif isinstance(value, int | float | str | bool | None):
                plain[path] = value
            else:
                raise ConfigError(
                    f"A server state holds tensors, nested dicts of tensors and plain values; {type(state).__name__}."
                    f"{path.replace('/', '.')} is a {type(value).__name__}. Store it as a tensor."
                )
    for path, value in flatten(states.values).items():
        tensors[f"clients/values/{path}"] = value[: states.used]
    return tensors, plain


def unpack(template: Any, tensors: Mapping[str, Tensor], plain: Mapping[str, Any], states: ClientStates) -> Any:
    """Inverse of `pack`; the template (a fresh start state) gives the type."""
    tree = unflatten({k.removeprefix("state/"): t for k, t in tensors.items() if k.startswith("state/")} | dict(plain))
    states.row = tensors["clients/row"].numpy().copy()
    states.used = int((states.row >= 0).sum())
    head = "clients/values/"
    states.values = unflatten({k.removeprefix(head): t for k, t in tensors.items() if k.startswith(head)})
    return type(template)(**{f.name: tree.get(f.name, {}) for f in fields(template)})
