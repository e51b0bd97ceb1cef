"""One runner for all experiments: it measures each cell once, goes on where it ended, and writes what it promises."""

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.figure import Figure

from coterie.errors import ConfigError
from reproductions.claims import FEWEST, PAPER_IS_WRONG, Claim, Margin
from reproductions.drawing import beside
from reproductions.experiment import SCALES, Experiment, Records, Row
from reproductions.names import EXPERIMENTS
from reproductions.page import filled, page, section, write
from reproductions.registry import experiment
from reproductions.runner import finish, records, run, table

CALLS: list[tuple[str, int]] = []


def _measure(cell, seed, scale):
    CALLS.append((cell, seed))
    if (cell, seed) == ("b", 1) and CALLS.count(("b", 1)) == 1:
        raise KeyboardInterrupt
    return {"value": {"a": 1.0, "b": 2.0}[cell] + 0.1 * seed}


def _rows(found):
    return [Row("first", 1.1, found.numbers("a", "value")), Row("second", 5.0, found.numbers("b", "value"))]


TOY = Experiment(
    name="toy",
    work="Somebody",
    shows="Table 0",
    cells=lambda scale: {"a": "a", "b": "b"},
    measure=_measure,
    rows=_rows,
    claims=lambda found: [Claim("a is less than b.", [found.above("b", "a", "value")], "It is.")],
    draw=lambda found: beside(_rows(found), "value"),
    size="a toy",
)


@pytest.fixture(autouse=True)
def fresh():
    CALLS.clear()


def test_an_interrupted_run_goes_on_and_measures_nothing_twice(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(TOY, "quick", 3, tmp_path, lambda line: None)
    kept = run(TOY, "quick", 3, tmp_path, lambda line: None)
    assert CALLS.count(("a", 0)) == CALLS.count(("b", 0)) == CALLS.count(("a", 1)) == 1
    assert kept["cells"]["b"] == {str(seed): {"value": 2.0 + 0.1 * seed} for seed in range(3)}
    assert json.loads((tmp_path / "toy.json").read_text()) == kept
    assert kept["machine"]
    assert kept["date"]


def test_seeds_that_were_looked_at_are_left_out(tmp_path):
    one = replace(TOY, first_seed=10)
    kept = run(one, "quick", 2, tmp_path, lambda line: None)
    assert set(kept["cells"]["a"]) == {"10", "11"}
    assert "`coterie reproduce toy --scale quick --seeds 2`: 2 seeds from 10 on" in section(one, kept)


def test_table_and_figures_are_written(tmp_path):
    CALLS.append(("b", 1))
    kept = run(TOY, "quick", 3, tmp_path, lambda line: None)
    summary = finish(TOY, kept, tmp_path)
    assert pd.read_csv(tmp_path / "toy.csv").what.tolist() == ["first", "second"]
    assert summary.verdict.tolist() == ["undecided", "differs"]
    assert (tmp_path / "toy.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "toy.svg").read_text()[:1000]


def test_an_error_is_told_by_a_digit_of_its_own_or_not_at_all():
    found = Records("quick", {})
    values = {"large": [1.0, 1.2], "small": [1.0, 1.0004], "rounding": [1.0, 1.0 + 1e-12]}
    one = replace(TOY, rows=lambda _: [Row(name, None, v, digits=2) for name, v in values.items()], claims=lambda _: [])
    assert table(one, found).ours.tolist() == ["1.10 ± 0.10", "1.00 ± 0.0002", "1.00"]


def test_a_seed_without_all_cells_does_not_count():
    kept = {"scale": "quick", "cells": {"a": {"0": {"v": 1}, "1": {"v": 2}}, "b": {"0": {"v": 3}}}}
    found = records(kept)
    assert found.numbers("a", "v") == [1.0]


def test_in_a_ragged_file_every_cell_counts_with_its_own_seeds():
    kept = {"scale": "quick", "ragged": True, "cells": {"a": {"0": {"v": 1}, "1": {"v": 2}}, "b": {"0": {"v": 3}}}}
    assert records(kept).numbers("a", "v") == [1.0, 2.0]


ABOUT = {"scale": "quick", "seconds": 1.0, "machine": "m", "date": "d", "commit": "c"}


def test_the_section_says_what_a_claim_comes_to_what_decided_it_and_why():
    claim = Claim(
        "b is less than a.", [Margin("a less b", [-1.0, -1.1, -0.9])], "It is not.", unlike="Our data are small."
    )
    one = replace(TOY, claims=lambda found: [claim])
    text = section(one, ABOUT | {"cells": {c: {"0": {"value": 1.0}} for c in "ab"}})
    assert (
        "- b is less than a. **Does not hold**. It is not. a less b: -1 (-1.25 to -0.752). Our data are small." in text
    )
    few = replace(TOY, claims=lambda found: [Claim("a is less than b.", [found.above("b", "a", "value")], "It is.")])
    kept = ABOUT | {"cells": {"a": {"0": {"value": 1.0}}, "b": {"0": {"value": 2.0}}}}
    assert "**Undecided**. It is. b, less a: +1, from 1 seed only." in section(few, kept)


def test_why_a_row_differs_is_told_below_the_table():
    explained = replace(TOY, why={"second": "Because."})
    seeds = {str(seed): {"value": 2.0 + 0.001 * seed} for seed in range(3)}
    told = section(explained, ABOUT | {"cells": {"a": seeds, "b": seeds}})
    assert "- second: Because." in told


def test_the_printed_deviation_of_several_runs_is_shown():
    row = Row("first", 1.0, [1.5, 1.4, 1.6], 0.4, runs=16)
    assert "1.000 ± 0.400" in table(replace(TOY, rows=lambda found: [row]), Records("quick", {})).paper.tolist()


def test_a_reference_is_named_beside_its_value():
    row = Row("first", 1.0, [1.01, 1.0, 0.99], tolerance=0.05, reference="Theorem 1")
    shown = table(replace(TOY, rows=lambda found: [row]), Records("quick", {}))
    assert shown.paper.tolist() == ["1.000 (Theorem 1)"]
    assert shown.verdict.tolist() == ["matches"]


@pytest.mark.parametrize("content", ["{", "[]", '{"experiment": "toy", "scale": "paper", "cells": {}}'])
def test_a_damaged_or_foreign_file_is_one_sentence(tmp_path, content):
    (tmp_path / "toy.json").write_text(content)
    with pytest.raises(ConfigError, match=r"Move it away|Choose another"):
        run(TOY, "quick", 1, tmp_path, lambda line: None)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_is_whole(name):
    one = experiment(name)
    assert one.name == name
    assert one.work
    assert one.shows
    for scale in ("quick", "paper"):
        assert one.cells(scale)
        assert one.seeds[scale] >= 1
        assert one.setting(scale)
    assert one.size


def test_an_unknown_name_gets_a_suggestion():
    with pytest.raises(ConfigError, match="Did you mean 'bernoulli'"):
        experiment("bernouli")


def test_the_page_has_every_experiment(tmp_path):
    text = page(tmp_path)
    assert all(f"coterie reproduce {name}" in text for name in EXPERIMENTS)


def test_tables_in_other_pages_are_made_anew(tmp_path):
    one = experiment("elections")
    run(one, "quick", 1, tmp_path / "numbers", lambda line: None)
    old = "Before.\n<!-- numbers: elections -->\nold | table\n<!-- end of numbers -->\nAfter."
    (tmp_path / "other.md").write_text(old)
    write(tmp_path / "numbers", tmp_path / "reproduction.md")
    new = (tmp_path / "other.md").read_text()
    assert "old | table" not in new
    assert "| judged on the vote share, weights as printed | 10.7 ± 1.9 |" in new
    assert new.startswith("Before.")
    assert new.endswith("After.")
    assert filled(new, tmp_path / "numbers") == new
    assert "has not been run yet" in filled(new.replace("elections", "pricing"), tmp_path / "numbers")


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[2] / "benchmarks" / "reproduction").glob("*.json")))
def test_every_file_of_numbers_makes_a_section(path):
    kept = json.loads(path.read_text())
    one = experiment(kept["experiment"])
    assert kept["scale"] in SCALES
    assert set(one.cells(kept["scale"])) >= set(kept["cells"])
    text = section(one, kept)
    assert "| nan" not in text
    found = records(kept)
    claims = one.claims(found)
    unexpected = [claim.says for claim in claims if not claim.expected]
    assert kept["scale"] == "quick" or not unexpected, "a claim fails for no known reason"
    assert all(claim.margins for claim in claims), "a claim has nothing that decides it"
    decided = [margin for claim in claims if claim.finding != "undecided" for margin in claim.margins]
    few = [m for m in decided if len(getattr(m, "values", None) or m.happened) < FEWEST]
    assert all(margin.exact for margin in few), "a claim is decided by fewer than three seeds"
    summary = table(one, found)
    unexplained = [what for what in summary.what[summary.verdict == "differs"] if what not in one.why]
    assert not unexplained or "" in one.why, "a row differs for no known reason"
    if one.wide is not None:
        assert len(one.wide(records(kept)))


def test_one_real_experiment_end_to_end(tmp_path):
    one = experiment("bernoulli")
    kept = run(one, "quick", 5, tmp_path, lambda line: None)
    summary = finish(one, kept, tmp_path)
    assert [claim.mark for claim in one.claims(records(kept))] == ["holds", "holds", PAPER_IS_WRONG]
    assert summary.verdict[:4].tolist() == ["agrees"] * 4
    assert isinstance(one.draw(records(kept)), Figure)
