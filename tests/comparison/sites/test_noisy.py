"""The decision that protects rows: what a client tells, what is made of it, and what its receipt says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import coterie as ct
from coterie.cli.commands import main
from coterie.comparison.sites.noisy import FOLDS
from coterie.comparison.sites.noisy_fit import TOO_SMALL, Told, decided, judged, repaired
from coterie.errors import ConfigError, DataError
from coterie.privacy import BudgetSpent, SimulationNoise, UnitMoments, noise_multiplier, public

HOW: dict[str, Any] = {"client": "site", "target": "y", "across": "sites", "target_range": (-5, 5)}
BOUNDS: dict[str, Any] = {
    "kind": public("regression"),
    "categories": public({}),
    "ranges": dict.fromkeys("abc", (-4, 4)),
}


def table(m: int = 8, n: int = 120, spread: float = 0.0, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(m * n, 3))
    site = np.repeat(np.arange(m), n)
    slope = np.array([1, -0.5, 0.3]) + spread * rng.normal(size=(m, 3))
    frame = pd.DataFrame(x, columns=list("abc"))
    frame["y"] = (x * slope[site]).sum(1) + rng.normal(size=m * n)
    frame["site"] = [f"s{i}" for i in site]
    return frame


def told(frame: pd.DataFrame, epsilon: float, seed: int = 0) -> Told:
    mechanism = UnitMoments("moments", FOLDS, 5, 1.0, noise_multiplier(epsilon, 1e-5, 1))
    noise, found = SimulationNoise(seed), []
    for _, rows in frame.groupby("site"):
        v = np.column_stack([np.ones(len(rows)), rows[list("abc")] / 4, rows["y"] / 5])
        found.append(mechanism(v, np.arange(len(v)), noise).value)
    return Told(np.stack(found), mechanism.sigma, (-5.0, 5.0), seed)


def answer(frame: pd.DataFrame, epsilon: float, seed: int = 0) -> Any:
    return decided(told(frame, epsilon, seed), sorted(set(frame["site"])), list("abc"))


def test_without_noise_it_is_the_decision_of_the_rows() -> None:
    """A huge budget: together helps identical clients, alone is best for others, by about the error of clear rows."""
    alike, apart = table(20, 60), table(20, 120, spread=1.0)
    same, other = answer(alike, 1e6), answer(apart, 1e6)
    assert same.recommendation == "together"
    assert same.sure in ("clear", "borderline")
    assert other.losses.mean(axis=1)["together"] > 1.2 * other.losses.mean(axis=1)["alone"]
    clear = ct.compare(alike, **{k: v for k, v in HOW.items() if k not in ("across", "target_range")}, family="linear")
    for way in ("alone", "together"):
        assert same.losses.mean(axis=1)[way] * same.table.variance == pytest.approx(
            clear.table.loc[way].mean(), rel=0.1
        )


def test_noise_leaves_losses_as_they_are_on_average() -> None:
    """Held-out losses are unbiased, and that of alone has the noise taken off that a site's own model does not have."""
    frame = table(12, 200, spread=0.4)
    exact = judged(told(frame, 1e6)).losses.mean((0, 2))
    noisy = np.stack([judged(told(frame, 6.0, s)).losses.mean((0, 2)) for s in range(30)])
    error = noisy.std(0) / np.sqrt(len(noisy))
    for place in (0, 1):  # constant and alone; the shared models of noisy sums are truly worse
        assert abs(noisy[:, place].mean() - exact[place]) < 4 * error[place] + 0.03 * exact[place]
    assert noisy[:, 2].mean() > exact[2] - 4 * error[2]
    assert judged(told(frame, 6.0)).raised > 0


def test_too_little_budget_is_an_answer() -> None:
    for seed in range(3):
        found = answer(table(6, 60, seed=seed), 0.3, seed)
        assert found.sure in ("leaning", "nothing")
        assert TOO_SMALL in found.doubts
        assert TOO_SMALL in found.words()
    assert not answer(table(6, 60), 1e6).doubts


def test_repaired_sums_can_be_sums_of_rows() -> None:
    fixed = repaired(told(table(5, 40), 0.5).moments, told(table(5, 40), 0.5).sigma)
    for cells in (fixed.cells, fixed.deflated):
        assert np.allclose(cells, cells.swapaxes(-1, -2))
        assert np.linalg.eigvalsh(cells[..., :-1, :-1]).min() > 0
    assert (fixed.deflated[..., 0, 0] < fixed.cells[..., 0, 0]).all()
    frame = table(5, 400)
    clear = repaired(told(frame, 1e9).moments, told(frame, 1e9).sigma)
    assert np.allclose(clear.cells, told(frame, 1e9).moments, atol=1e-3)


def test_a_receipt_per_client_names_the_unit_and_the_ledger_refuses_a_second_release(tmp_path: Path) -> None:
    budget = ct.Privacy(unit="row", epsilon=5, delta=1e-5, ledger=tmp_path / "ledger.sqlite")
    found = ct.compare(table(3, 60), privacy=budget, **HOW, **BOUNDS)
    assert set(found.receipts) == {"s0", "s1", "s2"}
    assert found.receipt is not None
    for receipt in found.receipts.values():
        assert receipt.valid, receipt.reasons
        assert receipt.unit == "one row of a client"
        assert receipt.verify().sentence.startswith("Checked")
        assert receipt.epsilon <= 5 * 1.001
        assert [line["name"] for line in receipt.releases] == ["moments"]
    with pytest.raises(BudgetSpent, match="rows of users: s0"):
        ct.compare(table(3, 60), privacy=budget, **HOW, **BOUNDS)


def test_units_of_several_rows_are_protected_together() -> None:
    frame = table(3, 60).assign(patient=lambda t: t.index // 5)
    budget = ct.Privacy(unit="patient", rows_per_unit=3, epsilon=50, delta=1e-5)
    found = ct.compare(frame, unit="patient", privacy=budget, **HOW, **BOUNDS)
    assert found.receipt is not None
    assert found.receipt.valid
    assert found.receipt.unit == "all rows of a client with the same patient (at most 3)"
    assert "k = 3 rows" in found.receipt.releases[0]["derivation"]
    assert found.overview["samples"].between(20, 55).all()  # 3 of every 5 rows of 12 patients, and noise
    with pytest.raises(ConfigError, match="read without such units"):
        ct.compare(frame.drop(columns="patient"), privacy=budget, **HOW, **BOUNDS)


def test_a_receipt_is_valid_only_where_columns_and_kinds_were_declared() -> None:
    budget = ct.Privacy(unit="row", epsilon=5, delta=1e-5)
    scaled = ct.compare(table(3, 60), privacy=budget, **HOW)
    assert scaled.receipt is not None
    assert not scaled.receipt.valid
    assert "statistics of the rows" in scaled.receipt.reasons[0]
    guessed = ct.compare(table(3, 60), privacy=budget, **HOW, ranges=BOUNDS["ranges"])
    assert guessed.receipt is not None
    assert not guessed.receipt.valid
    simulated = ct.compare(table(3, 60), privacy=replace(budget, noise="simulation"), **HOW, **BOUNDS)
    assert simulated.receipt is not None
    assert "NOT A DP RELEASE" in simulated.receipt.reasons[0]


def test_two_classes_are_judged_as_zero_and_one() -> None:
    frame = table(4, 80).assign(y=lambda t: np.where(t["y"] > 0, "yes", "no"))
    how = {k: v for k, v in (HOW | BOUNDS).items() if k not in ("kind", "target_range")}
    budget = ct.Privacy(unit="row", epsilon=1e4, delta=1e-5)
    found = ct.compare(frame, privacy=budget, classes=public(["no", "yes"]), **how)
    assert found.receipt is not None
    assert found.receipt.valid
    assert found.metric == "mse"
    assert 0.1 < found.table.loc["together"].mean() < 0.2  # of 0.25 for the overall average


def test_what_cannot_be_protected_is_refused_with_one_sentence() -> None:
    budget = ct.Privacy(unit="row", epsilon=5, delta=1e-5)
    with pytest.raises(ConfigError, match="public bounds"):
        ct.compare(table(3, 60), privacy=budget, **(HOW | {"target_range": None}), **BOUNDS)
    with pytest.raises(DataError, match="column 'c' has none"):
        ct.compare(table(3, 60), privacy=budget, **HOW, **(BOUNDS | {"ranges": {"a": (0, 1), "b": (0, 1)}}))
    with pytest.raises(ConfigError, match="Across sites a budget protects rows"):
        ct.compare(table(3, 60), privacy=ct.Privacy(5, 1e-5), **HOW)
    with pytest.raises(ConfigError, match="protects whole clients"):
        ct.compare(table(3, 60), client="site", target="y", privacy=budget)


def test_one_row_changes_one_clients_message_and_no_other() -> None:
    """Bit by bit before the noise, which is why one receipt per client is enough."""
    budget = ct.Privacy(unit="row", epsilon=5, delta=1e-5, noise="simulation")
    frame = table(3, 60)
    changed = frame.copy()
    changed.loc[0, ["a", "b", "c", "y"]] = [1e9, -1e9, np.nan, 4.0]
    losses = [ct.compare(f, privacy=budget, **HOW, **BOUNDS).overview["samples"] for f in (frame, changed)]
    assert (losses[0]["s1"], losses[0]["s2"]) == (losses[1]["s1"], losses[1]["s2"])


def test_the_command_line_protects_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, rows in table(3, 60).groupby("site"):
        rows.drop(columns="site").to_csv(tmp_path / f"{name}.csv", index=False)
    files = [str(tmp_path / f"s{i}.csv") for i in range(3)]
    asked = ["compare", *files, "--sites", "--client", "site", "--target", "y", "--kind", "regression", "--json"]
    rows = ["--privacy-unit", "row", "--epsilon", "5", "--delta", "1e-5", "--target-range=-5,5", "--categories", "none"]

    def run(*words: str) -> int:
        with pytest.raises(SystemExit) as end:
            main([*asked, *words])
        return int(end.value.code or 0)

    assert run(*rows, "--ranges", "a: -4,4; b: -4,4; c: -4,4") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["about"]["privacy"] == {"unit": "one row of a client", "epsilon": 5.0, "delta": 1e-5}
    assert run(*rows) == 2
    assert "public bounds" in capsys.readouterr().err
    assert run("--privacy-unit", "row") == 2
    assert "--epsilon" in capsys.readouterr().err
