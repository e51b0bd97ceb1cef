"""Checkpoints: one safetensors file with a JSON header and a checksum over both, so it is complete, absent or refused."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from coterie.base.disk import digest, said, writing
from coterie.base.tree import flatten, unflatten
from coterie.engines.base import ClientStates
from coterie.errors import ConfigError, DataError

FILE = "checkpoint.safetensors"
_VALUES = "clients/values/"


def write(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Atomic: a reader, or a run killed at any moment, sees the old file or the new one."""
    own: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, t in tensors.items():  # two names for one memory (a start model kept twice) are written twice
        t = t.detach().contiguous()
        place = t.untyped_storage().data_ptr()
        own[name] = t.clone() if place in storages else t
        storages.add(place)
    order, text = json.dumps(list(own)), json.dumps(about)
    header = {"about": text, "order": order, "checksum": _checksum(own, order, text)}
    with writing(path) as partial:
        save_file(own, str(partial), header)


def require(folder: Path | None) -> None:
    """Refuse to resume a run that does not exist."""
    if folder is None:
        raise ConfigError("resume needs the folder of the run. Pass out=….")
    if not (folder / FILE).is_file():
        raise ConfigError(f"There is no checkpoint in {folder}. Start the run without resume.")


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `write` wrote; a damaged file is refused."""
    if not path.is_file():
        raise ConfigError(f"There is no checkpoint at {path}. Start the run without resume.")
    try:
        with safe_open(str(path), "pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in json.loads(header["order"])}
        if header["checksum"] != _checksum(tensors, header["order"], header["about"]):
            raise DataError("its checksum is wrong")
        return tensors, dict(json.loads(header["about"]))
    except Exception as error:
        reason = f"its header has no {said(error)}" if isinstance(error, KeyError) else said(error)
        raise ConfigError(
            f"The file {path} is not a readable checkpoint: {reason}. Delete it and start again."
        ) from None


def _checksum(tensors: Mapping[str, Tensor], order: str, about: str) -> str:
    def parts() -> Iterator[Any]:
        yield from (order, about)
        for name, t in tensors.items():
            yield f"{name} {t.dtype} {tuple(t.shape)}"
            yield t.reshape(-1).view(torch.uint8).numpy()

    return digest(parts())


def check(about: Mapping[str, Any], path: Path) -> None:
    """Refuse a header with contradicting numbers of rounds."""
    done, history, plain = (about.get(name) for name in ("done", "history", "plain"))
    whole = isinstance(done, int) and not isinstance(done, bool) and done >= 0
    rows = isinstance(history, list) and all(isinstance(row, dict) for row in history)
    if not whole or not rows or not isinstance(plain, dict) or not isinstance(about.get("dropped", []), list):
        raise ConfigError(f"The checkpoint {path} lacks its rounds, history or values. Delete it and start again.")
    if [row.get("round") for row in history or []] != list(range(1, (done or 0) + 1)):
        raise ConfigError(
            f"The checkpoint {path} says {done} rounds, but its history has {len(history or [])} or others. Delete it and "
            "start again."
        )


def pack(state: Any, states: ClientStates) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Server state and clients' states as named tensors, and the plain values separately."""
    row, values = states.packed()
    tensors: dict[str, Tensor] = {"clients/row": torch.from_numpy(row)}
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
    for path, value in flatten(values).items():
        tensors[f"{_VALUES}{path}"] = value
    return tensors, plain


def unpack(template: Any, tensors: Mapping[str, Tensor], plain: Mapping[str, Any], states: ClientStates) -> Any:
    """Inverse of `pack`; the template (a fresh start state) gives the type."""
    _check_names(template, tensors, plain)
    _check_clients(tensors, states.n_clients)
    tree = unflatten({k.removeprefix("state/"): t for k, t in tensors.items() if k.startswith("state/")} | dict(plain))
    values = unflatten({k.removeprefix(_VALUES): t for k, t in tensors.items() if k.startswith(_VALUES)})
    states.load(tensors["clients/row"].numpy().copy(), values)
    return type(template)(**{f.name: tree.get(f.name, {}) for f in fields(template)})


def _check_names(template: Any, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> None:
    """Check that a state has the entries and types of a fresh one; sizes may have grown, for example when clusters split."""
    kept = {k.removeprefix("state/"): t for k, t in tensors.items() if k.startswith("state/")} | dict(plain)
    names = {f.name for f in fields(template)}
    wrong = [path for path in kept if path.split("/")[0] not in names]
    for f in fields(template):
        for path, value in flatten(getattr(template, f.name), f.name).items():
            if isinstance(value, Tensor) and not isinstance(kept.get(path, value), Tensor):
                wrong.append(path)
            if isinstance(value, Tensor) and isinstance(kept.get(path), Tensor) and kept[path].dtype != value.dtype:
                wrong.append(path)
        if not isinstance(getattr(template, f.name), Mapping) and f.name not in {path.split("/")[0] for path in kept}:
            wrong.append(f.name)
    if wrong:
        raise ConfigError(
            f"The checkpoint does not fit {type(template).__name__}: {wrong[0]!r} is missing, unknown or of another type. "
            "Delete it and start again."
        )


def _check_clients(tensors: Mapping[str, Tensor], n_clients: int) -> None:
    """Check that every client with a state has its own row, and that all values have these rows."""
    row = tensors.get("clients/row")
    good = row is not None and row.dtype == torch.int64 and tuple(row.shape) == (n_clients,)
    if row is not None and good:
        used = row[row >= 0].sort().values
        good = torch.equal(used, torch.arange(len(used))) and bool((row >= -1).all())
        good &= all(t.dim() > 0 and len(t) == len(used) for k, t in tensors.items() if k.startswith(_VALUES))
    if not good:
        raise ConfigError(f"The checkpoint does not hold the states of {n_clients} clients. Delete it and start again.")
