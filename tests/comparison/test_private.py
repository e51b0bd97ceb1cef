"""A private candidate in a comparison: its receipt is true, speaks of one release, and is shown and stored."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import coterie as ct
from coterie.comparison.private import Private, private_method
from coterie.privacy import Receipt, public
from coterie.report.page import page
from coterie.report.terminal import comparison_tables

BUDGET = ct.Privacy(3.0, 1e-6, clip=1.0)
ALONE = {"local": ct.Local(ct.LocalSGD(steps=2, lr=0.1))}


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    rng = np.random.default_rng(1)
    n = 8
    x = rng.normal(size=(n * 16, 2))
    y = (x @ [1.5, -1.0] + rng.normal(size=len(x)) > 0).astype(int)
    return pd.DataFrame({"who": np.repeat(np.arange(n), 16), "a": x[:, 0], "b": x[:, 1], "y": y})


def own(table: pd.DataFrame, target: str = "y") -> ct.Federation:
    told = {"scaling": "own", "one_class": "allow", "categories": public({})}
    return ct.Federation.from_frame(table, client="who", target=target, **told).declare_public("classes", "kind")


@pytest.fixture(scope="module")
def found(table: pd.DataFrame) -> ct.Comparison:
    whole = ct.Federation.from_frame(table, client="who", target="y", one_class="allow")
    return ct.compare(whole, seeds=1, rounds=3, privacy=BUDGET, private_data=own(table), algorithms=ALONE)


def test_one_release_is_covered_and_its_choices_were_made_in_advance(found: ct.Comparison) -> None:
    receipt = found.receipt
    assert receipt is not None
    assert receipt.valid, receipt.reasons
    assert 2.99 < receipt.epsilon <= 3.0
    assert receipt.releases[0]["count"] == 3
    assert found.released is not None
    assert found.results["private"][0].receipt.noise["mode"] == "simulation"  # scores release nothing
    assert "private" in found.table.index
    assert found.recommendation in ("alone", "together", "shrunk", "groups")


def test_it_is_shown_and_stored_with_what_is_not_covered(found: ct.Comparison, tmp_path: Path) -> None:
    told = "\n".join(str(part) for part in comparison_tables(found))
    html = page(found)
    for text in (told, html):
        assert "Not covered: everything else here" in text
    assert "PRIVACY RECEIPT: ε = 3" in html
    found.save(tmp_path)
    assert sorted(p.name for p in (tmp_path / "private").iterdir()) == [
        "model.safetensors",
        "receipt.json",
        "receipt.txt",
    ]
    assert Receipt.from_json((tmp_path / "private" / "receipt.json").read_text()) == found.receipt
    assert json.loads((tmp_path / "comparison.json").read_text())["receipt"]["valid"] is True


def test_without_own_scaling_or_a_public_range_nothing_is_promised(table: pd.DataFrame) -> None:
    whole = ct.Federation.from_frame(table, client="who", target="y", one_class="allow")
    options = {"seeds": 1, "rounds": 1, "algorithms": ALONE}
    task = ct.Task.default(whole)  # trained methods only
    void = ct.compare(whole, task, privacy=BUDGET, **options).receipt
    assert not void.valid
    assert "statistics of all clients' rows" in void.reasons[0]
    numbers = own(table.assign(y=1000 * table["a"] + table["b"]))
    candidate = Private(private_method("fedavg"), BUDGET, lambda seed: numbers, rounds=1)
    with pytest.raises(ct.errors.ConfigError, match="needs a public range of the target"):
        candidate.try_out(0, None, "local")
    with pytest.raises(ct.errors.ConfigError, match="low < high; got 3 and 1"):
        replace(candidate, target_range=(3.0, 1.0)).try_out(0, None, "local")
    assert replace(candidate, target_range=(-3000.0, 3000.0)).release(0, None, "local").receipt.valid
    with pytest.raises(ct.errors.ConfigError, match="shows the server every client's reply"):
        ct.compare(own(table), task, privacy=BUDGET, private="cfl", **options)


def test_a_ledger_adds_up_and_keeps_the_comparison_when_nothing_is_left(table: pd.DataFrame, tmp_path: Path) -> None:
    budget = ct.Privacy(3.0, 1e-6, clip=1.0, ledger=tmp_path / "book.sqlite")
    options = {"seeds": 1, "rounds": 1, "algorithms": ALONE, "task": ct.Task.default(own(table))}
    assert ct.compare(own(table), privacy=budget, **options).receipt.valid
    second = ct.compare(own(table), privacy=budget, **options)
    assert second.receipt is None
    assert any("nothing private was released" in told for told in second.warnings)
