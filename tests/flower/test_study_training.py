"""Learning algorithms in a study are those of one process, no site tells more than sums, and a site guards what it trains.
A plain run tells every site what its clients gain."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from test_fuzz import mutated, works
from test_study import SCORES, TOLD, page, served, tables
from together import DATA as LABELS
from together import SIZES, deployed, job, results, table

import coterie as ct
from coterie.base.tree import flatten
from coterie.errors import CoterieError
from coterie.flower import Failure, wire

LOOKS = {"look", "targets", "kept"} | {f"mse {k}" for k in ("known", "count", "mean", "products")}
METHODS = ["ditto", "ifca"]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("study")
    told, nodes, said = served(tables(3, 40), folder, algorithms=METHODS, rounds=2, seeds=1)
    return folder, told, nodes, said


def test_the_rows_of_the_page_are_those_of_one_process(study: Any) -> None:
    folder, told, _, said = study
    seen, whole = page(folder), pd.concat(tables(3, 40), ignore_index=True)
    options: dict[str, Any] = {"test_fraction": 0.0, "dtype": "float64", "across": "sites"}
    here = ct.compare(whole, client="who", target="y", algorithms=METHODS, rounds=2, seeds=1, **options)
    pooled = here.to_json()
    assert list(seen["table"]) == ["alone", "together", "shrunk", "groups", "local", "ditto", "ifca"]
    assert seen["settings"] == pooled["settings"]  # also the number of groups, and the rounds of local
    for name in ("table", "gains", "half_widths", "summary"):
        for method, row in pooled[name].items():
            np.testing.assert_allclose(list(seen[name][method].values()), list(row.values()), rtol=1e-9, atol=1e-12)
    assert seen["marks"] == pooled["marks"]
    assert "trains ditto, split 0" in said
    assert told["exchanges"] <= 6 < told["training"]["exchanges"]
    assert (folder / "server" / "participation.csv").exists()
    for i in range(3):
        (own,) = (folder / f"site{i}").glob("*/result")
        mine = json.loads((own / "numbers.json").read_text())["clients"][f"clinic {i}"]
        assert mine["ditto"]["score"] == pytest.approx(seen["table"]["ditto"][f"clinic {i}"])
        kept = ct.Result.load(own.parent / "trained" / "ditto-0")
        assert kept.evaluate()["mse"].iloc[0] == pytest.approx(mine["ditto"]["score"])


def test_a_training_tells_updates_and_sums_alone(study: Any) -> None:
    """Answers to an algorithm's questions have a number per coefficient and group at most, others are documented sums."""
    _, _, nodes, _ = study
    assert len(nodes.sent) == len(nodes.got)
    kinds = set()
    for (_, question), (_, block) in zip(nodes.sent, nodes.got, strict=True):
        asked, (told, tree) = wire.unpack(question)[0], wire.unpack(block)
        if asked["do"] == "look":
            kinds.add(asked["what"])
            assert set(flatten(tree)) <= LOOKS
            assert set(told) == {"tag"}
        elif asked.get("trial") is not None:
            assert all(t.numel() <= 2 * 6 * 5 for t in flatten(tree).values())
        else:
            assert {k.removeprefix("send/") for k in flatten(tree)} - {"weight", "group"} <= TOLD | SCORES
    assert kinds == {"look", "keep", "told", "targets"}


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"name": "fedavg"}, "nothing is trained as 'fedavg'"),
        ({"held": [[0.01, 0]]}, "held out"),
        ({"held": [[0.25, 0]] * 3}, "held out"),
        ({"clients": [0, 1, 2, 3]}, "clients that this run does not have"),
        ({"metrics": ["rows"]}, "what is trained"),
        ({"local": {"steps": 1}}, "what is trained"),
    ],
)
def test_a_site_guards_what_it_trains(study: Any, change: dict[str, Any], match: str) -> None:
    _, _, nodes, _ = study
    told, tree = next(
        found
        for n, b in nodes.sent
        if n == 100 and (found := wire.unpack(b))[0]["do"] == "look" and found[0]["what"] == "look"
    )
    told = told | {"number": 1 << 79, "trial": told["trial"] | change}
    with pytest.raises(CoterieError, match=match):
        nodes.sites[100].answer(wire.pack(told, tree))


def test_many_different_parts_of_the_rows_are_not_told_of(study: Any) -> None:
    """Sums over as many parts as there are rows would be a system of equations for the rows."""
    _, _, nodes, _ = study
    told, tree = next(
        found
        for n, b in nodes.sent
        if n == 100 and (found := wire.unpack(b))[0]["do"] == "look" and found[0]["what"] == "targets"
    )
    told_of = 0
    for seed in range(100, 140):
        other = told | {"number": (1 << 79) + seed, "trial": told["trial"] | {"held": [[0.25, seed]]}}
        with suppress(CoterieError):
            nodes.sites[100].answer(wire.pack(other, tree))
            told_of += 1
    assert told_of <= 4
    with pytest.raises(CoterieError, match="holds out at most"):
        nodes.sites[100].answer(wire.pack(other | {"number": 1 << 79}, tree))


def test_a_site_without_algorithms_in_its_file_trains_nothing(tmp_path: Path, study: Any) -> None:
    _, nodes, _ = served(tables(2, 40), tmp_path, seeds=1)
    told, tree = wire.unpack(next(b for n, b in study[2].sent if n == 100 and wire.unpack(b)[0]["do"] == "look"))
    (folder,) = (tmp_path / "site0").glob("*/places.npy")
    with pytest.raises(CoterieError, match="nothing is trained"):
        nodes.sites[100].answer(wire.pack(told | {"run": folder.parent.name}, tree))


def test_a_site_that_is_gone_in_a_training_is_left_out_of_its_rows(tmp_path: Path) -> None:
    gone = []

    def change(node: int, asked: dict[str, Any], answer: Any) -> Any:
        gone.extend([True] if asked["do"] == "look" and asked["what"] == "keep" else [])
        return Failure("gone") if node == 101 and gone else answer

    served(tables(3, 40), tmp_path, change, algorithms=["fedavg"], rounds=1, seeds=1)
    seen = page(tmp_path)
    assert seen["marks"]["alone"]["clinic 1"] != "no score"
    bounds = dict(seen["half_widths"]["fedavg"])
    assert bounds["clinic 1"] is None
    assert all(w is not None for c, w in bounds.items() if c != "clinic 1")


def test_sites_learn_what_their_clients_gain(tmp_path: Path) -> None:
    rows, method = table(SIZES), ct.Ditto(local=ct.LocalSGD(steps=5, lr=0.1, batch_size=None))
    work = job(method, rounds=3, alone=True)
    _, nodes, told = deployed(work, rows, tmp_path)
    fed = ct.Federation.from_frame(rows, **LABELS)
    here = ct.fit(method, fed, work.task(fed), rounds=3, progress=False)
    wanted, found = here.evaluate(), results(nodes)
    for client, row in wanted.iterrows():
        assert found[client][1]["alone"] == pytest.approx(row["alone"], abs=1e-6)
        assert found[client][1]["gain"] == pytest.approx(row["gain"], abs=1e-6)
    assert told["participation"]["stay"] + told["participation"]["leave"] == len(wanted)
    assert told["participation"]["leave"] == len(here.participation().leavers)
    assert told["participation"]["mean_gain"] == pytest.approx(wanted["gain"].mean(), abs=1e-6)


def test_odd_looks_end_in_an_answer_or_one_sentence(study: Any) -> None:
    _, _, nodes, _ = study
    looks = {h["what"]: b for n, b in nodes.sent if n == 100 and (h := wire.unpack(b)[0])["do"] == "look"}
    rng, good = random.Random(0), 0
    for i in range(240):
        block = looks[list(looks)[i % len(looks)]]
        good += works(lambda block=block: nodes.sites[100].answer(mutated(rng, block)))  # type: ignore[misc]
    assert good < 240
