"""Damaged, edited and foreign files: always one sentence, never a raw error, never a silently wrong run."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor, nn

import coterie as ct
from coterie.base.disk import file_digest, json_digest
from coterie.estimation.histograms.count_store import open_store, save_counts
from coterie.estimation.histograms.counts import read_counts
from coterie.training import checkpoint

SGD = ct.LocalSGD(steps=2, lr=0.1, batch_size=8)


def damaged(raw: bytes, rng: np.random.Generator) -> bytes:
    """The bytes with a flipped bit, a hole, a cut, a shuffled or repeated part, or replaced by garbage."""
    data = bytearray(raw)
    kind, at = rng.integers(6), int(rng.integers(len(data)))
    length = int(rng.integers(1, 64))
    if kind == 0:
        data[at] ^= 1 << int(rng.integers(8))
    elif kind == 1:
        del data[at:]
    elif kind == 2:
        data[at : at + length] = bytes(len(data[at : at + length]))
    elif kind == 3:
        data[at : at + length] = rng.bytes(length)
    elif kind == 4:
        del data[at : at + length]
    else:
        data[at:at] = data[at : at + length]
    return bytes(data)


def fuzz(folder: Path, names: list[str], load: Callable[[], Any], times: int, always: bool = True) -> int:
    """How many damaged files were refused; any other error than a sentence of ours fails the test."""
    rng = np.random.default_rng(0)
    told: list[str] = []
    for i in range(times):
        path = folder / names[i % len(names)]
        whole = path.read_bytes()
        broken = damaged(whole, rng)
        if broken == whole:
            told.append("")
            continue
        path.write_bytes(broken)
        try:
            load()
        except (ct.errors.ConfigError, ct.errors.DataError) as error:
            told.append(str(error))
        finally:
            path.write_bytes(whole)
    load()
    assert not [text for text in told if len(text) > 600 or "\n" in text]
    assert len(told) == times or not always, f"{times - len(told)} of {times} damaged files were accepted"
    return len(told)


@pytest.fixture(scope="module")
def saved(fed: ct.Federation, task: ct.Task, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    ct.fit(ct.Local(SGD), fed, task, rounds=3, out=folder, alone=False)
    return folder


# ---- fuzz ------------------------------------------------------------------------------------------------------------


def test_every_damaged_checkpoint_is_refused(saved: Path, tmp_path: Path) -> None:
    path = shutil.copy(saved / checkpoint.FILE, tmp_path)
    fuzz(tmp_path, [checkpoint.FILE], lambda: checkpoint.read(Path(path)), 300)


def test_every_damaged_result_is_refused(saved: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(saved, tmp_path / "copy"))
    names = ["result.json", "history.parquet", "evaluation.parquet", "models.safetensors"]
    whole = ct.Result.load(folder)

    def load() -> None:
        got = ct.Result.load(folder)  # JSON may change and say the same: white space, a part twice
        assert got.about == whole.about
        assert got.history.equals(whole.history)
        assert got.evaluate().equals(whole.evaluate())

    assert fuzz(folder, names, load, 300, always=False) >= 290


@pytest.mark.parametrize("mmap", [True, False])
def test_every_damaged_federation_is_refused(fed: ct.Federation, mmap: bool, tmp_path: Path) -> None:
    fed.save(tmp_path)

    def load() -> None:
        got = ct.Federation.load(tmp_path, mmap=mmap)  # JSON may change and say the same: white space, a part twice
        assert (got.clients.tolist(), got.kind, got.classes) == (fed.clients.tolist(), fed.kind, fed.classes)
        assert torch.equal(got.y, fed.y)
        assert np.array_equal(got.offsets, fed.offsets)
        assert np.array_equal(got.n_train, fed.n_train)

    fuzz(tmp_path, ["y.npy", "offsets.npy", "n_train.npy", "clusters.npy"], load, 200)
    assert fuzz(tmp_path, ["federation.json"], load, 100, always=False) >= 95
    # mapped features are not read, so only a damaged header or length is seen
    fuzz(tmp_path, ["x.npy"], lambda: ct.Federation.load(tmp_path, mmap=mmap), 100, always=not mmap)


@pytest.mark.parametrize("form", ["scipy", "parts", "columns"])
def test_a_damaged_file_of_counts_is_never_a_raw_error(form: str, tmp_path: Path) -> None:
    counts = sp.csr_array(np.random.default_rng(1).poisson(0.7, size=(30, 12)).astype(float))
    path = tmp_path / "c.npz"
    if form == "parts":
        parts = {"indptr": counts.indptr, "indices": counts.indices, "data": counts.data, "shape": counts.shape}
        np.savez(path, **parts)
    else:
        sp.save_npz(path, counts if form == "scipy" else sp.csc_array(counts))

    def stream() -> None:
        with open_store(path) as store:
            store.load(0, store.shape[0])

    refused = fuzz(tmp_path, ["c.npz"], lambda: read_counts(path), 150, always=False)
    assert refused > 100
    fuzz(tmp_path, ["c.npz"], stream, 100, always=False)


def test_a_description_opens_only_files_of_its_folder(fed: ct.Federation, tmp_path: Path) -> None:
    """It may name a device, which would be read for ever, or a file elsewhere; a pipe is never opened."""
    fed.save(tmp_path)
    about = json.loads((tmp_path / "federation.json").read_text())
    for name in ("/dev/zero", "../secret", "nothing.npy"):
        told = {k: v for k, v in about.items() if k != "checksum"} | {"files": about["files"] | {name: "0"}}
        (tmp_path / "federation.json").write_text(json.dumps(told | {"checksum": json_digest(told)}))
        with pytest.raises(ct.errors.DataError, match="is no file of this folder"):
            ct.Federation.load(tmp_path)
    (tmp_path / "federation.json").write_text(json.dumps(about))
    (tmp_path / "y.npy").unlink()
    os.mkfifo(tmp_path / "y.npy")
    with pytest.raises(ct.errors.DataError, match="is no file of this folder"):
        ct.Federation.load(tmp_path)


def test_a_damaged_folder_of_counts_is_never_a_raw_error(tmp_path: Path) -> None:
    save_counts(
        tmp_path, [np.random.default_rng(1).poisson(0.7, size=(30, 12))], vocabulary=[f"w{i}" for i in range(12)]
    )

    def stream() -> None:
        with open_store(tmp_path) as store:
            store.load(0, store.shape[0])
            store.vocabulary()

    names = [f"{name}.npy" for name in ("indptr", "indices", "data", "shape", "vocabulary")]
    fuzz(tmp_path, names, stream, 250, always=False)


# ---- edits under a right checksum ------------------------------------------------------------------------------------


def edit_done(tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    about["done"] = 2


def edit_round(tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    about["history"][1]["round"] = 7


def no_history(tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    del about["history"]


def negative(tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    about |= {"done": -1, "history": []}


def twice(tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    tensors["clients/row"][0] = tensors["clients/row"][1]


def fewer(tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    tensors["clients/row"] = tensors["clients/row"][:-1]


def short(tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    name = next(k for k in tensors if k.startswith("clients/values"))
    tensors[name] = tensors[name][:-1]


def stranger(tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    tensors["state/unknown"] = torch.ones(1)


@pytest.mark.parametrize("edit", [edit_done, edit_round, no_history, negative, twice, fewer, short, stranger])
def test_a_checkpoint_that_contradicts_itself_is_refused(
    edit: Any, saved: Path, fed: ct.Federation, task: ct.Task, tmp_path: Path
) -> None:
    tensors, about = checkpoint.read(saved / checkpoint.FILE)
    edit(tensors, about)
    checkpoint.write(tmp_path / checkpoint.FILE, tensors, about)
    with pytest.raises(ct.errors.ConfigError, match=r"^The checkpoint .* Delete it and start again\.$"):
        ct.fit(ct.Local(SGD), fed, task, rounds=4, out=tmp_path, alone=False, resume=True)


def test_a_state_of_another_type_is_refused(fed: ct.Federation, task: ct.Task, tmp_path: Path) -> None:
    ct.fit(ct.FedAvg(SGD), fed, task, rounds=1, out=tmp_path, alone=False)
    tensors, about = checkpoint.read(tmp_path / checkpoint.FILE)
    name = next(k for k in tensors if k.startswith("state/") and tensors[k].is_floating_point())
    checkpoint.write(tmp_path / checkpoint.FILE, tensors | {name: tensors[name].double()}, about)
    with pytest.raises(ct.errors.ConfigError, match="missing, unknown or of another type"):
        ct.fit(ct.FedAvg(SGD), fed, task, rounds=2, out=tmp_path, alone=False, resume=True)


def test_an_edited_result_is_refused(saved: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(saved, tmp_path / "copy"))
    about = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps(about | {"rounds": 2}))
    with pytest.raises(ct.errors.ConfigError, match=r"result\.json is damaged: its checksum"):
        ct.Result.load(folder)


# ---- another run -----------------------------------------------------------------------------------------------------


class Scaled(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3)
        self.factor = factor
        nn.init.zeros_(self.inner.weight)  # at this start all factors agree
        nn.init.zeros_(self.inner.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * self.inner(x)


def losses(power: float) -> Any:
    def loss(outputs: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, y, reduction="none") ** power

    return loss


def one_number_zeroed(fed: ct.Federation, row: int) -> ct.Federation:
    x = fed.x.clone()
    x[row, 1] = 0.0
    return replace(fed, x=x)


def test_another_number_anywhere_in_the_data_is_noticed(
    saved: Path, fed: ct.Federation, task: ct.Task, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(saved, tmp_path / "copy"))
    for row in (1, len(fed.x) // 2, len(fed.x) - 1):
        with pytest.raises(ct.errors.ConfigError, match=r"other settings or data \(data differ\)"):
            ct.fit(ct.Local(SGD), one_number_zeroed(fed, row), task, rounds=4, out=folder, alone=False, resume=True)
    assert ct.fit(ct.Local(SGD), fed, task, rounds=4, out=folder, alone=False, resume=True).about["rounds"] == 4


@pytest.mark.parametrize("what", ["factor", "loss", "start"])
def test_another_model_loss_or_start_is_noticed(what: str, fed: ct.Federation, tmp_path: Path) -> None:
    def run(out: Path, factor: float = 2.0, power: float = 1.0, start: float = 0.0, **options: Any) -> ct.Result:
        task = ct.Task(lambda: Scaled(factor), loss=losses(power))
        model = {"inner.weight": torch.full((3, 4), start), "inner.bias": torch.zeros(3)}
        return ct.fit(ct.FedAvg(SGD), fed, task, start=model, out=out, alone=False, **options)

    run(tmp_path, rounds=1)
    change, word = {
        "factor": ({"factor": 2.01}, "outputs of the model"),
        "loss": ({"power": 1.01}, "losses of the model"),
        "start": ({"start": 1e-3}, "start"),
    }[what]
    with pytest.raises(ct.errors.ConfigError, match=rf"other settings or data \(.*{word}.* differ\)"):
        run(tmp_path, rounds=2, resume=True, **change)
    assert run(tmp_path, rounds=2, resume=True).about["rounds"] == 2


def test_another_server_state_to_start_from_is_noticed(fed: ct.Federation, task: ct.Task, tmp_path: Path) -> None:
    states = [ct.fit(ct.FedAvg(SGD), fed, task, rounds=r, alone=False).state for r in (1, 2)]
    options: dict[str, Any] = {"out": tmp_path, "alone": False}
    ct.fit(ct.FedAvg(SGD), fed, task, rounds=1, start=states[0], **options)
    with pytest.raises(ct.errors.ConfigError, match=r"\(start differ\)"):
        ct.fit(ct.FedAvg(SGD), fed, task, rounds=2, start=states[1], resume=True, **options)


@pytest.mark.parametrize(
    "change",
    [
        {"metrics": ["another"]},
        {"metrics": [["accuracy"]]},
        {"seed": "\x1b[2J"},
        {"rounds": 7},
        {"clusters": []},
    ],
)
def test_an_edited_result_with_a_right_checksum_is_one_sentence(
    change: dict[str, Any], saved: Path, tmp_path: Path
) -> None:
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "result.json"
    about = {k: v for k, v in (json.loads(file.read_text()) | change).items() if k != "checksum"}
    file.write_text(json.dumps(about | {"checksum": json_digest(about)}))
    with pytest.raises(ct.errors.ConfigError, match=r"result.json is damaged"):
        ct.Result.load(tmp_path)


def test_models_that_are_not_there_are_one_sentence(saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    tensors, _ = checkpoint.read(tmp_path / "models.safetensors")
    checkpoint.write(tmp_path / "models.safetensors", tensors | {"model_of": tensors["model_of"] + 5}, {})
    about = {k: v for k, v in json.loads((tmp_path / "result.json").read_text()).items() if k != "checksum"}
    about["files"]["models.safetensors"] = file_digest(tmp_path / "models.safetensors")
    (tmp_path / "result.json").write_text(json.dumps(about | {"checksum": json_digest(about)}))
    with pytest.raises(ct.errors.ConfigError, match="does not fit the other files"):
        ct.Result.load(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
@pytest.mark.parametrize("name", ["result.json", "checkpoint.safetensors", "federation.json"])
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(
    name: str, saved: Path, fed: ct.Federation, tmp_path: Path
) -> None:
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    fed.save(tmp_path)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    read = {
        "result.json": lambda: ct.Result.load(tmp_path),
        "checkpoint.safetensors": lambda: checkpoint.read(tmp_path / checkpoint.FILE),
        "federation.json": lambda: ct.Federation.load(tmp_path),
    }
    with pytest.raises(ct.errors.CoterieError):
        read[name]()
