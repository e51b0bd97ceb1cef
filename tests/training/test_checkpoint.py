"""Checkpoints: what comes back is what was written, in its order; a file is whole or absent."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie.base.tree import flat_vector, flatten
from coterie.engines.base import ClientStates
from coterie.errors import ConfigError
from coterie.training import checkpoint


@dataclass(frozen=True)
class State:
    model: dict[str, Any]
    anchor: dict[str, Any]
    best: float = 0.1
    name: str = "x"
    nothing: dict[str, Any] = field(default_factory=dict)


def round_trip(state: Any, states: ClientStates, path: Path) -> tuple[Any, ClientStates]:
    tensors, plain = checkpoint.pack(state, states)
    checkpoint.write(path, tensors, {"plain": plain})
    read, about = checkpoint.read(path)
    back = ClientStates(states.n_clients)
    empty = State({}, {})
    return checkpoint.unpack(empty, read, about["plain"], back), back


def test_values_order_and_types_survive(tmp_path: Path) -> None:
    start = {"weight": torch.tensor([[1.5, 2.0]]), "bias": torch.tensor([float("nan")]), "a": torch.tensor(3)}
    state = State(start, {"deep": start}, best=1 / 3)  # one memory under two names
    states = ClientStates(30)
    states.add(np.array([7, 2]), {"z": torch.tensor([1.0, 2.0]), "a": {"n": torch.tensor([3, 4])}})
    again, back = round_trip(state, states, tmp_path / "c.safetensors")
    assert list(again.model) == ["weight", "bias", "a"]  # the order sums over a model's entries follow
    assert torch.equal(flat_vector(again.model).nan_to_num(0), flat_vector(state.model).nan_to_num(0))
    assert again.anchor["deep"]["a"].dtype == torch.int64
    assert (again.best, again.name, again.nothing) == (1 / 3, "x", {})
    assert list(flatten(back.values)) == ["z", "a/n"]
    assert back.used == 2
    assert back.get(np.array([2, 7]))["a"]["n"].tolist() == [4, 3]
    assert back.missing(np.arange(4)).tolist() == [0, 1, 3]


@pytest.mark.parametrize("value", [[torch.ones(2)], np.ones(2), (1, 2)], ids=["list", "array", "tuple"])
def test_a_state_that_cannot_be_written_is_named(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"State\.model\.w is a (list|ndarray|tuple)\. Store it as a tensor"):
        checkpoint.pack(State({"w": value}, {}), ClientStates(1))


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "c.safetensors"
    checkpoint.write(path, {"a": torch.ones(1)}, {"n": 1})

    def half(tensors: Any, name: str, about: Any) -> None:
        Path(name).write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(checkpoint, "save_file", half)
    with pytest.raises(ConfigError, match=r"c\.safetensors cannot be written: disk full"):
        checkpoint.write(path, {"a": torch.zeros(1)}, {"n": 2})
    assert checkpoint.read(path)[1] == {"n": 1}
