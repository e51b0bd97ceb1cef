"""Methods side by side: intervals that cover, paired verdicts that are rarely wrong, costs, LaTeX."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import coterie as ct
from coterie.errors import ConfigError
from coterie.training.tables import _paired, mean_with_interval
from tests.conftest import build

STEPS = ct.LocalSGD(steps=5, lr=0.3, batch_size=None)
TASK = ct.Task(ct.models.mlp(4, 8, 3), "cross_entropy", "accuracy")
FED = build()


def world(rng: np.random.Generator, seeds: int, clients: int, gain: float = 0.0) -> pd.DataFrame:
    """Differences between two methods: clients, seeds and single runs have their own deviations."""
    parts = (
        0.05 * rng.normal(size=clients),
        0.03 * rng.normal(size=(seeds, 1)),
        0.05 * rng.normal(size=(seeds, clients)),
    )
    return pd.DataFrame(gain + sum(parts))


@pytest.mark.parametrize(("seeds", "clients"), [(3, 8), (5, 40), (10, 10)])
def test_intervals_hold_the_mean_of_other_seeds_and_clients(seeds: int, clients: int) -> None:
    rng, inside = np.random.default_rng(7), 0
    for _ in range(800):
        mean, half = mean_with_interval(world(rng, seeds, clients).to_numpy(), 0.95)
        inside += abs(mean) <= half
    assert inside / 800 >= 0.95 - 4 * np.sqrt(0.95 * 0.05 / 800)


def test_verdicts_on_equal_methods_are_rarely_wrong_and_real_gains_are_found() -> None:
    rng, zero = np.random.default_rng(3), world(np.random.default_rng(0), 5, 20) * 0
    nothing = [_paired(world(rng, 5, 20), zero, "accuracy", 0.95)["verdict"] for _ in range(600)]
    assert np.mean([v != "undecided" for v in nothing]) <= 0.05 + 4 * np.sqrt(0.05 * 0.95 / 600)
    real = [_paired(world(rng, 5, 20, 0.1), zero, "accuracy", 0.95)["verdict"] for _ in range(200)]
    assert real.count("better") >= 190
    assert {_paired(world(rng, 5, 20, 0.3), zero, "mse", 0.95)["verdict"]} == {"worse"}
    assert _paired(world(rng, 2, 20, 0.3), zero[:2], "accuracy", 0.95)["verdict"] == "undecided"


@pytest.fixture(scope="module")
def runs() -> dict[str, object]:
    def some(algorithm: object, **options: object) -> ct.training.Seeds:
        given = {"seeds": 3, "rounds": 6, "alone": False, "evaluate_every": 1, "progress": False} | options
        return ct.fit_seeds(algorithm, FED, TASK, **given)  # type: ignore[arg-type]

    return {"FedAvg": some(ct.FedAvg(local=STEPS)), "IFCA_2": some(ct.IFCA(clusters=2, local=STEPS), newcomers=0.25)}


def test_a_table_has_what_a_paper_reports(runs: dict[str, object]) -> None:
    found = ct.table(runs, test="paired", target=0.5)  # type: ignore[arg-type]
    assert isinstance(found, pd.DataFrame)
    result = runs["FedAvg"].results[0]  # type: ignore[attr-defined]
    each = pd.concat([r.scores()["accuracy"] for r in runs["FedAvg"].results], axis=1).mean(axis=1)  # type: ignore[attr-defined]
    row = found.loc["FedAvg"]
    assert row["accuracy"] == pytest.approx(each.mean())
    assert row["worst tenth"] == pytest.approx(each.min())  # of twelve clients, one
    assert row["low"] < row["accuracy"] < row["high"]
    assert row["seeds"] == 3
    assert row["rounds"] == 6
    assert row["MB"] == pytest.approx((result.history["bytes_up"] + result.history["bytes_down"]).sum() / 1e6)
    assert found.loc["IFCA_2", "rounds to target"] <= 6
    assert 0 < found.loc["IFCA_2", "new clients"] <= 1
    assert found.loc["IFCA_2", "verdict"] in ("better", "worse", "undecided")
    assert found.loc["IFCA_2", "difference low"] < found.loc["IFCA_2", "difference"]
    assert pd.isna(found.loc["FedAvg", "verdict"])


def test_one_seed_has_an_interval_over_clients_and_no_verdict(runs: dict[str, object]) -> None:
    ones = {name: some.results[0] for name, some in runs.items()}  # type: ignore[attr-defined]
    found = ct.table(ones, test="paired", against="IFCA_2")
    assert isinstance(found, pd.DataFrame)
    assert found.loc["FedAvg", "verdict"] == "undecided"
    assert found["low"].lt(found["high"]).all()


def test_latex_has_a_row_per_method_and_the_best_in_bold(runs: dict[str, object]) -> None:
    text = ct.table(runs, test="paired", latex=True)  # type: ignore[arg-type]
    assert isinstance(text, str)
    assert text.count("\\pm") == 2
    assert text.count("\\mathbf") == 1
    assert "IFCA\\_2" in text
    assert "nan" not in text.lower()


def test_a_table_of_nothing_is_refused(runs: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="at least one run"):
        ct.table({})
    with pytest.raises(ConfigError, match="against must be one of"):
        ct.table(runs, against="FedProx")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="must be results"):
        ct.table({"a": []})
    other = ct.fit(ct.FedAvg(), build(kind="regression"), rounds=1, alone=False)
    with pytest.raises(ConfigError, match="one first metric"):
        ct.table({"a": other, **runs})  # type: ignore[dict-item]
