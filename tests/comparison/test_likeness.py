"""Maps, matrices, stability and what tells groups apart; and the same figures in matplotlib, as vectors."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

import coterie as ct
from coterie.comparison.likeness import embedding, model_points, ordered_distances, stability, tell_apart
from coterie.comparison.result import Comparison

FAST = ct.LocalSGD(steps=5, lr=0.1, batch_size=None)


def federation(clients: int = 24) -> ct.Federation:
    """Even clients have the slope +2 and large z, odd ones −2 and small z."""
    rng = np.random.default_rng(0)
    data, names = {}, [f"c{i}" for i in range(clients)]
    for i, name in enumerate(names):
        sign = 1 - 2 * (i % 2)
        frame = np.column_stack([rng.normal(size=20), rng.normal(3 * sign, 1.0, size=20)])
        data[name] = (frame, 2 * sign * frame[:, 0] + 0.3 * rng.normal(size=20))
    return ct.Federation.from_arrays(data, kind="regression", clusters={n: i % 2 for i, n in enumerate(names)})


@pytest.fixture(scope="module")
def exact() -> Comparison:
    return ct.compare(federation(), seeds=1)


@pytest.fixture(scope="module")
def trained() -> Comparison:
    fed = federation(6)
    methods = {"fedavg": ct.FedAvg(FAST), "oracle": ct.Oracle(FAST)}
    return ct.compare(fed, ct.Task(ct.models.linear(2, 1), "mse"), methods, rounds=3, seeds=2)


def test_distances_are_root_mean_squared_differences_of_predictions(exact: Comparison) -> None:
    points = model_points(exact)
    assert points is not None
    assert exact.decision is not None
    X, shrunk = exact.decision.table.X, exact.decision.predictors["shrunk"]
    a, b = (shrunk.outputs(X, [name] * len(X))[:, 0] for name in ("c0", "c1"))
    apart = float(np.linalg.norm(points.loc["c0"] - points.loc["c1"]))
    assert apart == pytest.approx(float(np.sqrt(np.mean((a - b) ** 2))), rel=1e-6)


def test_networks_are_compared_by_what_they_predict(trained: Comparison) -> None:
    points = model_points(trained)
    assert points is not None
    live = trained.results["local"][0]
    x, _, _ = live.federation.some_rows(200)
    a, b = (live.model(name)(x).detach().double().numpy()[:, 0] for name in ("c0", "c1"))
    apart = float(np.linalg.norm(points.loc["c0"] - points.loc["c1"]))
    assert apart == pytest.approx(float(np.sqrt(np.mean((a - b) ** 2))), rel=1e-4)


def test_groups_stand_apart_on_the_map_and_in_the_matrix(exact: Comparison) -> None:
    points, groups = model_points(exact), exact.groups
    assert points is not None
    assert groups is not None
    assert groups.nunique() == 2
    first = embedding(points)["first direction"]
    spans = sorted((first[groups == g].min(), first[groups == g].max()) for g in (0, 1))
    assert spans[0][1] < spans[1][0]
    apart = ordered_distances(points, groups).to_numpy()
    assert apart[:12, :12].max() < apart[:12, 12:].min()
    blocks = ordered_distances(points, groups, most=6)
    assert len(blocks) == 6
    assert blocks.to_numpy()[:3, :3].max() < blocks.to_numpy()[:3, 3:].min()


def test_stability_matches_groups_whatever_their_names() -> None:
    groups = pd.Series([0, 0, 0, 1, 1, 1], index=list("abcdef"))
    again = pd.DataFrame([[1, 1, 1, 0, 0, 0], [2, 2, 5, 5, 5, 5]], columns=groups.index)
    assert stability(groups, again).tolist() == [1, 1, 0.5, 1, 1, 1]


def test_the_groups_of_every_fold_are_kept(exact: Comparison) -> None:
    again = exact.regrouped["groups"]
    assert again.shape == (10, 24)
    assert exact.groups is not None
    assert stability(exact.groups, again).mean() > 0.95


def test_what_tells_groups_apart_has_the_right_size_and_sign(exact: Comparison, trained: Comparison) -> None:
    assert exact.groups is not None
    told = tell_apart(exact, exact.groups)
    even = int(exact.groups["c0"])
    sizes = told[told["group"] == even].set_index(["what", "name"])["size"]
    assert sizes["column", "x1"] > 10  # means 6 apart, with a deviation of about 0.22 between clients
    assert sizes["effect", "x0"] > 1.5
    other = tell_apart(trained, trained.grouped["oracle"], "oracle")
    assert set(other["what"]) == {"target"}  # arrays have no column names


def test_figures_are_drawn_as_vectors(exact: Comparison, trained: Comparison, tmp_path: Path) -> None:
    at = pd.DataFrame({"lon": range(24), "lat": range(24)}, index=exact.table.columns)
    drawn = [
        exact.plot_means(), exact.plot_gains(), exact.plot_map(), exact.plot_map(at), exact.plot_likeness(),
        exact.plot_apart(), exact.plot_apart("column"), trained.plot_curves(), trained.plot_bytes(),
        trained.plot_gains("fedavg"), trained.results["fedavg"][0].plot_bytes(),
    ]  # fmt: skip
    for ax in drawn:
        ax.figure.savefig(tmp_path / "figure.svg")
        assert (tmp_path / "figure.svg").read_text("utf-8").count("<path") > 5
        plt.close(ax.figure)
    shown = drawn[1].collections[1].get_offsets()
    assert np.allclose(np.sort(np.asarray(shown)[:, 0]), np.sort(exact.gains.loc[exact.method].to_numpy(float)))


def test_a_picture_that_cannot_be_drawn_is_one_sentence(exact: Comparison) -> None:
    with pytest.raises(ct.errors.ConfigError, match="no method 'shrunken'"):
        exact.plot_gains("shrunken")
    with pytest.raises(ct.errors.ConfigError, match="no curve 'loss'"):
        exact.plot_curves()
    with pytest.raises(ct.errors.ConfigError, match="column, effect or target"):
        exact.plot_apart("size")
    with pytest.raises(ct.errors.ConfigError, match="Nothing was sent"):
        exact.plot_bytes()


def test_rounding_errors_are_no_direction() -> None:
    """Clients that differ in one way lie on a line, not on a magnified picture of the last digits."""
    line = np.outer([0.0, 1.0, 2.0], [1.0, 2.0, 0.5]) + 1e-9 * np.random.default_rng(0).normal(size=(3, 3))
    at = embedding(pd.DataFrame(line, index=list("abc")))
    assert (at["second direction"] == 0).all()
    assert at["first direction"].nunique() == 3
    assert at.attrs["share"] == pytest.approx(1)
