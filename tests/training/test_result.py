"""Results: what is loaded is what was saved, without data or code."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.axes import Axes
from torch import Tensor, nn

import coterie as ct
from coterie.training import checkpoint

SGD = ct.LocalSGD(steps=3, lr=0.1, batch_size=8)


@pytest.fixture(scope="module")
def result(fed: ct.Federation, task: ct.Task) -> ct.Result:
    return ct.fit(ct.FineTuned(base=ct.Oracle(SGD)), fed, task, rounds=3)


@pytest.mark.parametrize("ids", [None, list(range(12)), [*range(11), "last"]], ids=["text", "numbers", "mixed"])
def test_loaded_it_is_what_was_saved(ids: Any, make_fed: Any, task: ct.Task, tmp_path: Path) -> None:
    fed = make_fed(ids=ids)
    result = ct.fit(ct.FineTuned(base=ct.Oracle(SGD)), fed, task, rounds=3, out=tmp_path)
    again = ct.Result.load(tmp_path)
    pd.testing.assert_frame_equal(again.history, result.history)
    pd.testing.assert_frame_equal(again.evaluate(), result.evaluate(), check_index_type=False)
    assert again.clusters.tolist() == result.clusters.tolist() == [i % 2 for i in range(12)]
    assert list(again.clusters.index) == list(again.clients) == list(fed.clients)
    pd.testing.assert_frame_equal(again.scores(), result.scores(), check_index_type=False, check_names=False)
    assert again.loaded
    assert not result.loaded
    with pytest.raises(ct.errors.ConfigError, match="cannot be trained again"):
        again.again(fed)
    assert again.about["rounds"] == 3
    assert again.about["finished"] is True
    for client in fed.clients:
        x, _ = fed.test(client)
        assert torch.equal(again.model(client)(x), result.model(client)(x))
        assert not again.model(client).training
    with pytest.raises(ct.errors.DataError, match="no client 'nobody'"):
        again.model("nobody")
    for name in ("task", "federation", "state", "evaluation"):
        with pytest.raises(ct.errors.ConfigError, match="A loaded result has no"):
            getattr(again, name)
    assert not [p for p in tmp_path.rglob("*") if p.suffix in (".pkl", ".pt", ".pth")]


def test_equal_models_are_stored_once(fed: ct.Federation, task: ct.Task, tmp_path: Path) -> None:
    for algorithm, distinct in ((ct.FedAvg(SGD), 1), (ct.Oracle(SGD), 2), (ct.Local(SGD), 12)):
        folder = tmp_path / type(algorithm).__name__
        ct.fit(algorithm, fed, task, rounds=1).save(folder)
        tensors, _ = checkpoint.read(folder / "models.safetensors")
        assert {len(t) for n, t in tensors.items() if n.startswith("model/")} == {distinct}
        assert len(tensors["model_of"]) == 12


def test_double_precision_survives(fed64: ct.Federation, task: ct.Task, tmp_path: Path) -> None:
    result = ct.fit(ct.FedAvg(SGD), fed64, task, rounds=2, out=tmp_path)
    mean = result.state.model["0.weight"]
    assert mean.dtype == torch.float64
    assert torch.equal(result.model("c1")[0].weight, mean)  # type: ignore[index, union-attr]
    assert torch.equal(ct.Result.load(tmp_path).model("c1")[0].weight, mean)  # type: ignore[index, union-attr]


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("scale", torch.full((4,), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x * self.scale)
        return out


def test_a_network_of_ones_own_code_needs_the_task_to_load(fed: ct.Federation, tmp_path: Path) -> None:
    task = ct.Task(Own)
    result = ct.fit(ct.FedAvg(SGD), fed, task, rounds=1, out=tmp_path)
    x, _ = fed.test("c5")
    with pytest.raises(ct.errors.ConfigError, match=r"Load with Result\.load\(folder, task=…\)"):
        ct.Result.load(tmp_path).model("c5")
    assert torch.equal(ct.Result.load(tmp_path, task=task).model("c5")(x), result.model("c5")(x))


def test_a_folder_without_a_whole_result_is_refused(result: ct.Result, tmp_path: Path) -> None:
    with pytest.raises(ct.errors.ConfigError, match="no finished result"):
        ct.Result.load(tmp_path)
    result.save(tmp_path)
    os.unlink(tmp_path / "result.json")
    with pytest.raises(ct.errors.ConfigError, match=r"missing result\.json"):
        ct.Result.load(tmp_path)


def test_a_loaded_result_serves_as_the_yardstick(fed: ct.Federation, task: ct.Task, tmp_path: Path) -> None:
    ct.fit(ct.Local(SGD), fed, task, rounds=3, out=tmp_path, alone=False)
    given = ct.fit(ct.FedAvg(SGD), fed, task, rounds=3, alone=ct.Result.load(tmp_path)).evaluate()
    equal = ct.fit(ct.FedAvg(SGD), fed, task, rounds=3, alone="equal budget").evaluate()
    pd.testing.assert_frame_equal(given, equal, check_names=False)
    assert given.attrs["yardstick"] == "given"


def test_tables_handed_out_are_copies(result: ct.Result) -> None:
    table = result.evaluate()
    table["gain"] = 0.0
    assert not result.evaluate()["gain"].equals(table["gain"])


def test_plots_return_axes_and_draw_on_the_one_given(result: ct.Result, tmp_path: Path) -> None:
    result.save(tmp_path)
    for source in (result, ct.Result.load(tmp_path)):
        for plot in (source.plot_history, source.plot_gains, source.plot_clusters):
            assert isinstance(plot(), Axes)
            _, ax = plt.subplots()
            assert plot(ax=ax) is ax
            assert ax.get_xlabel()
            counted = {"round": ax.get_xticks(), "clients": ax.get_yticks()}
            for name in {ax.get_xlabel(), ax.get_ylabel()} & set(counted):  # there is no round 1.5
                assert all(tick == round(tick) for tick in counted[name])
            plt.close("all")
    many = replace(result, _stored={"evaluation": pd.concat([result.evaluate()] * 5)})
    assert many.plot_gains().get_xlabel() == "clients, sorted by gain"
    plt.close("all")


def test_clusters_are_the_algorithms(fed: ct.Federation, task: ct.Task, result: ct.Result) -> None:
    assert fed.clusters is not None
    assert result.clusters.tolist() == fed.clusters.tolist()
    assert result.clusters.index.equals(fed.clients)
    assert ct.fit(ct.FedAvg(SGD), fed, task, rounds=1).clusters.nunique() == 1
    assert ct.fit(ct.Local(SGD), fed, task, rounds=1).clusters.tolist() == list(range(12))


def test_a_client_without_test_rows_has_no_score_and_harms_nobody(task: ct.Task) -> None:
    rng = np.random.default_rng(0)
    data = {f"c{i}": (rng.normal(size=(n, 4)), np.arange(n) % 3) for i, n in enumerate((2, 20, 30))}
    table = ct.fit(ct.FedAvg(SGD), ct.Federation.from_arrays(data), task, rounds=2, evaluate_every=1).evaluate()
    assert table["n_test"].tolist() == [0, 5, 8]
    assert table["accuracy"].isna().tolist() == [True, False, False]


def test_printed_it_says_what_was_run_and_shows_nobodys_rows(fed: ct.Federation, task: ct.Task) -> None:
    result = ct.fit(ct.FedAvg(), fed, task, rounds=2, alone=False)
    assert repr(result).endswith("12 clients, 2 rounds)")
    assert "tensor" not in repr(result) + repr(fed)
    assert repr(fed).startswith("Federation(12 clients")
