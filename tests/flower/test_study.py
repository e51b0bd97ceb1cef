"""A study on sites gives the answer of one table, and no site tells more than sums."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from loopback import Deployment, free_port
from together import InProcess

import coterie as ct
from coterie.base.tree import flatten
from coterie.cli import main
from coterie.cli.consortium import study_job
from coterie.cli.flower import job_of
from coterie.errors import CoterieError
from coterie.flower import Failure, wire
from coterie.flower.guard import MOST_ASKS, OUTGOING
from coterie.flower.studies import serve_study

DATA: dict[str, Any] = {"client": "who", "target": "y", "features": ["a", "b", "c"], "kind": "regression"}
TOLD = {"count", "sums", "moments", "value", "slope", "curve", "slopes", "curves"}
SCORES = {
    f"{m} {k}" for m in ("mse", "r2", "log_loss", "accuracy", "auc") for k in ("known", "mean", "products", "folds")
}


def tables(clients: int = 4, rows: int = 60) -> list[pd.DataFrame]:
    rng = np.random.default_rng(2)
    found = []
    for i in range(clients):
        x = rng.normal(size=(rows + i, 2))
        part = pd.DataFrame(x, columns=["a", "b"]).assign(c=rng.choice(["x", "y"], rows + i), who=f"clinic {i}")
        part["y"] = x @ [1.0, 0.5 * i] + (part["c"] == "x") + rng.normal(size=rows + i)
        part.loc[part.index % 9 == 0, "a"] = np.nan
        found.append(part)
    return found


def served(
    parts: list[pd.DataFrame], folder: Path, change: Any = None, **section: Any
) -> tuple[dict[str, Any], InProcess, list[str]]:
    nodes = InProcess(study_job(DATA, section, {}, least=1), parts, folder)
    nodes.change, said = change, []  # type: ignore[var-annotated]
    told = serve_study(nodes.job, nodes, folder / "server", sites=len(parts), tell=said.append)
    return told, nodes, said


def page(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "server" / "comparison.json").read_text())
    return found


def test_the_answer_is_that_of_one_table_and_each_site_gets_its_own(tmp_path: Path) -> None:
    parts = tables()
    told, _, _ = served(parts, tmp_path)
    seen = page(tmp_path)
    whole = pd.concat(parts, ignore_index=True)
    pooled = ct.compare(whole, client="who", target="y", test_fraction=0.0, dtype="float64", across="sites").to_json()
    assert seen["recommendation"] == pooled["recommendation"]
    for name in ("table", "gains", "half_widths"):
        for method, row in pooled[name].items():
            np.testing.assert_allclose(list(seen[name][method].values()), list(row.values()), rtol=1e-8, atol=1e-12)
    assert told["exchanges"] <= 6
    assert (tmp_path / "server" / "report.html").exists()
    for i, part in enumerate(parts):
        (own,) = (tmp_path / f"site{i}").glob("*/result")
        mine = json.loads((own / "numbers.json").read_text())
        assert list(mine["clients"]) == [f"clinic {i}"]
        assert mine["clients"][f"clinic {i}"]["shrunk"]["score"] == pytest.approx(
            seen["table"]["shrunk"][f"clinic {i}"]
        )
        text = (own / "report.html").read_text() + (own / "numbers.json").read_text()
        assert not any(f"clinic {j}" in text for j in range(4) if j != i)
        models = json.loads((own / "models.json").read_text())["clients"][f"clinic {i}"]
        assert set(models) == {"together", "shrunk", "groups", "alone"}
        rows = ct.Federation.load(own.parent / "rows")
        x, y = (t.double().numpy() for t in rows.train(f"clinic {i}"))
        for name, model in models.items():
            made = x @ np.array(list(model["coefficients"].values())) + model["intercept"]
            worse = mine["clients"][f"clinic {i}"][name]["score"] / ((y - made) ** 2).mean()
            assert 0.9 < worse < 1.5, name  # of rows that training did not see, against those it saw
        assert len(part) == len(y)


def test_only_the_documented_sums_cross_the_wire(tmp_path: Path) -> None:
    """Every message of every site: names of fields, and sizes that do not depend on the number of rows."""
    sizes = []
    for rows in (60, 120):
        _, nodes, _ = served(tables(rows=rows), tmp_path / str(rows))
        found = set()
        for _, block in nodes.got:
            told, tree = wire.unpack(block)
            assert set(told) <= {
                "clients", "labels", "sizes", "n_valid", "n_test", "columns", "digits", "spread", "ready",
                "dropped", "bytes", "info", "tag", "shapes", "scores", "settings", "table",
            }  # fmt: skip
            assert not told.get("info")
            names = {k.removeprefix("send/") for k in flatten(tree)} - {"weight", "group"}
            assert names <= TOLD | SCORES
            found |= names
        assert "moments" in found
        sizes.append([t.numel() for _, b in nodes.got for t in flatten(wire.unpack(b)[1]).values()])
        lines = (tmp_path / str(rows) / "site0" / OUTGOING).read_text().splitlines()
        assert len(lines) == sum(node == 100 for node, _ in nodes.got)
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("at", ["counts", "scores"])
def test_a_site_that_is_gone_is_named_and_left_out(tmp_path: Path, at: str) -> None:
    def change(node: int, asked: dict[str, Any], answer: Any) -> Any:
        gone = node == 101 and asked["do"] == "ask" and asked["phase"] == at
        return Failure("the SuperNode is gone (error 5)") if gone else answer

    told, _, said = served(tables(), tmp_path, change)
    assert told["lost"] == ["clinic 1"]
    assert f"clinic 1 did not answer '{at}' and is left out" in said
    seen = page(tmp_path)
    assert set(seen["table"]["alone"]) == {"clinic 0", "clinic 2", "clinic 3"}
    assert "Left out because they did not answer: clinic 1." in seen["warnings"]
    assert not list((tmp_path / "site1").glob("*/result"))


def test_with_one_site_left_the_study_ends_with_a_sentence(tmp_path: Path) -> None:
    def change(node: int, asked: dict[str, Any], answer: Any) -> Any:
        return Failure("gone") if node != 100 and asked.get("phase") == "moments" else answer

    with pytest.raises(CoterieError, match=r"2 clients with 7 rows or more; 1 can take part\. 3 did not"):
        served(tables(), tmp_path, change)


def test_a_site_answers_so_many_questions_and_no_other(tmp_path: Path) -> None:
    _, nodes, _ = served(tables(), tmp_path)
    block = next(b for n, b in nodes.sent if n == 100 and wire.unpack(b)[0]["do"] == "ask")
    told, tree = wire.unpack(block)
    for changed in ({"ask": MOST_ASKS}, {"reduce": ["SumBy", 1]}, {"phase": "own_model"}, {"phase": "_alone"}):
        with pytest.raises(CoterieError):
            nodes.sites[100].answer(wire.pack(told | {"number": told["number"] + 1000} | changed, tree))


STUDY = """\
[data]
client = "who"
target = "y"
features = ["a", "b", "c"]
kind = "regression"

[compare]
seeds = 2
"""


def test_a_project_of_a_study_shows_what_would_leave(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "study.toml").write_text(STUDY)
    tables()[0].to_csv(tmp_path / "a.csv", index=False)
    for command in (["init", str(tmp_path / "app"), "--config", str(tmp_path / "study.toml")],):
        with pytest.raises(SystemExit) as end:
            main(["flower", *command])
        assert not end.value.code
    with pytest.raises(SystemExit) as end:
        main(["flower", "show", str(tmp_path / "app"), "--table", str(tmp_path / "a.csv")])
    assert not end.value.code
    said = capsys.readouterr().out
    assert "clinic 0 (60)" in said
    assert "in 10 folds of 6 rows or more" in said
    assert job_of(STUDY, tmp_path).ends.seeds == 2


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (STUDY + '[algorithm]\nname = "ditto"\n', "does not go with"),
        (STUDY + 'metric = "auc"\n', "does not fit regression"),
        (STUDY + "folds = 3\n", "folds"),
    ],
)
def test_files_that_are_no_study(text: str, match: str, tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match=match):
        job_of(text, tmp_path)


def test_a_trial_on_one_machine_is_the_json_of_one_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = tables()
    for i, part in enumerate(parts):
        part.to_csv(tmp_path / f"s{i}.csv", index=False)
    pd.concat(parts).to_csv(tmp_path / "all.txt", index=False)
    found = []
    options = ["--client", "who", "--target", "y", "--json"]
    for command in (
        [str(tmp_path), "--sites"],
        [str(tmp_path / f"s{i}.csv") for i in range(4)] + ["--sites"],
        [str(tmp_path / "all.txt"), "--folds-by-client"],
    ):
        with pytest.raises(SystemExit) as end:
            main(["compare", *command, *options])
        assert not end.value.code
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1] == found[2]


# ---- real nodes ------------------------------------------------------------------------------------------------------


def heart() -> tuple[list[pd.DataFrame], dict[str, Any]]:
    frame = ct.datasets.heart_frame()
    features = [c for c in frame if c not in ("hospital", "target")]
    told = {"client": "hospital", "target": "target", "features": features, "kind": "classification"}
    return [part for _, part in frame.groupby("hospital")], told


def rain() -> tuple[list[pd.DataFrame], dict[str, Any]]:
    """Gauges of the west and of the east, with text columns, whose order differs, and holes."""
    frame = ct.datasets.rain_frame().join(ct.datasets.rain_stations(), on="station")
    frame = frame[frame["station"].isin(sorted(frame["station"].unique())[::12])].reset_index(drop=True)
    frame.loc[frame.index % 11 == 0, "elevation_m"] = np.nan
    west = frame["lon"] < frame["lon"].median()
    told = {"client": "station", "target": "rain", "features": ["month", "year", "elevation_m"], "kind": "regression"}
    return [frame[west], frame.loc[~west, frame.columns[::-1]]], told


def votes() -> tuple[list[pd.DataFrame], dict[str, Any]]:
    """Who won the counties of some states in 2020, by earlier elections."""
    frame = ct.datasets.elections().table.dropna(subset=["state"])
    states = [s for s, rows in frame.groupby("state") if 0.08 < rows["rep2020"].mean() < 0.92 and len(rows) > 30][:12]
    frame = frame[frame["state"].isin(states)].assign(won=lambda t: np.where(t["rep2020"] == 1, "rep", "dem"))
    features = ["rep2000", "rep2004", "rep2008", "rep2012", "rep2016"]
    told = {"client": "state", "target": "won", "features": features, "kind": "classification"}
    return [frame[frame["state"].isin(states[i::2])] for i in range(2)], told


@contextmanager
def nodes_of(parts: list[pd.DataFrame], data: dict[str, Any], folder: Path) -> Iterator[Deployment]:
    """A SuperLink and a SuperNode per table on loopback, with TLS and authentication; the project is in `app`."""
    section = "".join(f"{k} = {json.dumps(v)}\n" for k, v in data.items())
    (folder / "study.toml").write_text(f"[data]\n{section}\n[compare]\n")
    told = ["--config", str(folder / "study.toml"), "--sites", str(len(parts))]
    made = [sys.executable, "-m", "coterie", "flower", "init", str(folder / "app"), *told]
    subprocess.run(made, check=True, capture_output=True, timeout=300)
    (folder / "deployment").mkdir()
    flower = Deployment(folder / "deployment")
    ports = [free_port() for _ in parts]
    try:
        flower.superlink()
        for i, (part, port) in enumerate(zip(parts, ports, strict=True)):
            part.to_csv(folder / f"{i}.csv", index=False)
            where: dict[str, Any] = {"table": str(folder / f"{i}.csv"), "folder": str(folder / f"site{i}"), "least": 1}
            flower.supernode(f"supernode{i}", flower.key(f"key{i}"), port, **where)
        flower.workers(ports)
        yield flower
    finally:
        flower.stop()


@pytest.fixture
def hospitals(tmp_path: Path) -> Iterator[tuple[Deployment, Path]]:
    """Four hospitals."""
    with nodes_of(*heart(), tmp_path) as flower:
        yield flower, tmp_path


def pooled(parts: list[pd.DataFrame], data: dict[str, Any]) -> Any:
    """The study of the same rows in one process."""
    how = {k: data[k] for k in ("client", "target", "kind")}
    used = [data["client"], data["target"], *data["features"]]
    whole = pd.concat([part[used] for part in parts], ignore_index=True)
    return ct.compare(whole, **how, test_fraction=0.0, dtype="float64", across="sites").to_json()


def require_equal(seen: dict[str, Any], here: dict[str, Any], atol: float) -> None:
    for name in ("table", "gains", "half_widths"):
        for method, row in here[name].items():
            np.testing.assert_allclose(list(seen[name][method].values()), list(row.values()), atol=atol, rtol=atol)
    assert (seen["recommendation"], seen["sure"]) == (here["recommendation"], here["sure"])


@pytest.mark.parametrize(("made", "atol", "most"), [(heart, 1e-5, 30), (rain, 1e-8, 6), (votes, 1e-5, 30)])
def test_exchanges_and_bytes_are_few_and_the_answer_is_the_pooled_one(
    made: Any, atol: float, most: int, tmp_path: Path
) -> None:
    parts, data = made()
    nodes = InProcess(study_job(data, {}, {}, least=1), parts, tmp_path)
    told = serve_study(nodes.job, nodes, tmp_path / "server", sites=len(parts), tell=lambda _: None)
    require_equal(page(tmp_path), pooled(parts, data), atol)
    assert told["exchanges"] <= most
    for node in nodes.sites:
        assert sum(len(block) for n, block in nodes.got if n == node) < 5e6


@pytest.mark.flower
@pytest.mark.skipif(
    importlib.util.find_spec("flwr") is None, reason="flwr is not installed; `make test-flower` installs it"
)
@pytest.mark.skipif(shutil.which("openssl") is None or shutil.which("ssh-keygen") is None, reason="openssl is needed")
def test_four_hospitals_decide(hospitals: tuple[Deployment, Path], capsys: pytest.CaptureFixture[str]) -> None:
    flower, folder = hospitals
    flower.run(folder / "app", out=str(folder / "out"), timeout=240.0)
    flower.wait((folder / "out" / "deployment.json").exists, 900, "the end of the study")
    told = json.loads((folder / "out" / "deployment.json").read_text())
    assert told["lost"] == []
    require_equal(json.loads((folder / "out" / "comparison.json").read_text()), pooled(*heart()), 1e-5)
    assert told["exchanges"] <= 30
    assert told["bytes_up"] / 4 < 5e6
    assert len(list(folder.glob("*/*/result/report.html"))) == 4
    with capsys.disabled():
        print(f"\n{told['exchanges']} exchanges, {told['bytes_up'] / 4e6:.2f} MB per site, {told['seconds']} s")


@pytest.mark.flower
@pytest.mark.skipif(
    importlib.util.find_spec("flwr") is None, reason="flwr is not installed; `make test-flower` installs it"
)
@pytest.mark.skipif(shutil.which("openssl") is None or shutil.which("ssh-keygen") is None, reason="openssl is needed")
@pytest.mark.parametrize(("made", "atol"), [(rain, 1e-8), (votes, 1e-5)])
def test_other_tables_on_real_nodes(made: Any, atol: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with nodes_of(*made(), tmp_path) as flower:
        flower.run(tmp_path / "app", out=str(tmp_path / "out"), timeout=240.0)
        flower.wait((tmp_path / "out" / "deployment.json").exists, 900, "the end of the study")
    told = json.loads((tmp_path / "out" / "deployment.json").read_text())
    require_equal(json.loads((tmp_path / "out" / "comparison.json").read_text()), pooled(*made()), atol)
    assert told["lost"] == []
    with capsys.disabled():
        print(f"\n{told['exchanges']} exchanges, {told['bytes_up'] / 2e6:.2f} MB per site, {told['seconds']} s")


@pytest.mark.flower
@pytest.mark.skipif(
    importlib.util.find_spec("flwr") is None, reason="flwr is not installed; `make test-flower` installs it"
)
@pytest.mark.skipif(shutil.which("openssl") is None or shutil.which("ssh-keygen") is None, reason="openssl is needed")
def test_a_hospital_killed_in_mid_study_is_left_out(hospitals: tuple[Deployment, Path]) -> None:
    flower, folder = hospitals
    flower.run(folder / "app", out=str(folder / "out"), timeout=120.0)
    sent = folder / "site1" / OUTGOING
    flower.wait(lambda: sent.exists() and "forms" in sent.read_text(), 600, "the first models")
    flower.kill("supernode1")
    flower.wait((folder / "out" / "deployment.json").exists, 900, "the end of the study")
    told = json.loads((folder / "out" / "deployment.json").read_text())
    seen = json.loads((folder / "out" / "comparison.json").read_text())
    frame = ct.datasets.heart_frame()
    without = ct.compare(
        frame[frame["hospital"] != "hungarian"],
        client="hospital",
        target="target",
        test_fraction=0.0,
        dtype="float64",
        across="sites",
    ).to_json()
    assert told["lost"] == ["hungarian"]
    assert "Left out because they did not answer: hungarian." in seen["warnings"]
    assert seen["recommendation"] == without["recommendation"]
    for method, row in without["table"].items():  # columns were agreed on with the lost site
        np.testing.assert_allclose(list(seen["table"][method].values()), list(row.values()), atol=1e-2)
    assert len(list(folder.glob("*/*/result/report.html"))) == 3
