"""Studies with secure sums: the server sees sums over sites, and each site judges its own clients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_secure import keys
from test_study import DATA, tables
from together import InProcess

import coterie as ct
from coterie.base.tree import flatten
from coterie.cli.consortium import study_job
from coterie.cli.flower import job_of
from coterie.cli.summed_study import NOT_COMPARED
from coterie.comparison.sites.result import all_rows
from coterie.comparison.sites.summed import SummedStudy, conduct_summed
from coterie.engines import LocalEngine
from coterie.engines.base import answered, rows_env
from coterie.errors import ConfigError, CoterieError, EngineError
from coterie.flower import Failure, wire
from coterie.flower.studies import serve_study
from coterie.secure.settings import Secure


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """No machine loses its power here, so nothing waits for the disk."""
    monkeypatch.setattr("os.fsync", lambda file: None)


def served(
    parts: list[Any], folder: Path, change: Any = None, data: Any = None, **section: Any
) -> tuple[dict[str, Any], InProcess, list[str]]:
    files, lines = keys(folder / "keys", len(parts))
    job = study_job(DATA | (data or {}), section, {}, least=1, secure=Secure(lines))
    nodes = InProcess(job, parts, folder, files)
    nodes.change, said = change, []  # type: ignore[var-annotated]
    return serve_study(job, nodes, folder / "server", sites=len(parts), tell=said.append), nodes, said


def of_classes() -> list[Any]:
    return [t.assign(y=np.where(t["y"] > t["y"].mean(), "ill", "well")) for t in tables(5, 40)]


@pytest.mark.parametrize("kind", ["regression", "classification"])
def test_the_answer_is_that_of_one_table_and_each_site_judges_its_own(kind: str, tmp_path: Path) -> None:
    parts = tables(5) if kind == "regression" else of_classes()
    told, _, _ = served(parts, tmp_path, data={"kind": kind}, seeds=2)
    whole = all_rows(
        ct.Federation.from_frame(_joined(parts), **(DATA | {"kind": kind}), test_fraction=0.0, dtype="float64")
    )
    study = SummedStudy(kind == "classification", "mse" if kind == "regression" else "log_loss")
    here = answered(conduct_summed(study, 5, 2), LocalEngine().run, rows_env(whole, 0))
    assert (told["recommendation"], told["sure"]) == (here.verdict.recommendation, here.verdict.shown)
    assert told["interval"] == pytest.approx(here.verdict.share, rel=1e-4)
    page = (tmp_path / "server" / "report.html").read_text()
    assert NOT_COMPARED in page
    assert "clinic" not in page
    gains = []
    for i in range(5):
        (own,) = (tmp_path / f"site{i}").glob("*/result")
        mine = json.loads((own / "numbers.json").read_text())
        (name,) = mine["clients"]
        assert name == f"clinic {i}"
        gains.append(mine["clients"][name]["gain"])
        assert mine["clients"][name]["low"] < gains[-1] < mine["clients"][name]["high"]
        assert name in (own / "report.html").read_text()
        models = json.loads((own / "models.json").read_text())["clients"][name]
        assert set(models) == {"alone", "together"}
        if kind == "regression":
            rows = ct.Federation.load(own.parent / "rows")
            x, y = (t.double().numpy() for t in rows.train(name))
            for way, model in models.items():
                made = x @ np.array(list(model["coefficients"].values())) + model["intercept"]
                worse = mine["clients"][name][way] * here.variance * here.scale[-1] ** 2 / ((y - made) ** 2).mean()
                assert 0.9 < worse < 1.5, way  # of rows that training did not see, against those it saw
    size = here.variance if kind == "regression" else 1.0
    assert np.mean(gains) == pytest.approx(here.verdict.over_alone["together"].mean / size, rel=1e-4)


def _joined(parts: list[Any]) -> Any:
    import pandas as pd

    return pd.concat(parts, ignore_index=True)


def test_only_masked_sums_cross_the_wire_in_the_study_itself(tmp_path: Path) -> None:
    _, nodes, _ = served(tables(4), tmp_path, seeds=1)
    asked = 0
    for (_, question), (_, block) in zip(nodes.sent, nodes.got, strict=True):
        head = wire.unpack(question)[0]
        if head["do"] != "ask":
            continue
        told, tree = wire.unpack(block)
        assert (set(told), set(flatten(tree))) == ({"tag", "context"}, {"masked"})
        cells = np.bincount(tree["masked"].numpy().view(np.uint8), minlength=256)
        assert cells.max() < 8 * max(cells.mean(), 4)
        asked += 1
    assert asked == 4 * 4  # sizes, counts, moments and scores


@pytest.mark.parametrize("at", ["counts", "moments", "scores"])
def test_a_lost_site_is_left_out_of_later_questions_and_none_is_asked_again(tmp_path: Path, at: str) -> None:
    def change(node: int, asked: dict[str, Any], answer: Any) -> Any:
        gone = node == 101 and asked["do"] == "ask" and asked["phase"] == at
        return Failure("the SuperNode is gone (error 5)") if gone else answer

    told, nodes, said = served(tables(5), tmp_path, change, seeds=1)
    assert told["lost"] == ["clinic 1"]
    assert f"clinic 1 did not answer '{at}' and is left out" in said
    asked = [head for head in (wire.unpack(m)[0] for n, m in nodes.sent if n == 100) if head["do"] == "ask"]
    assert [head["phase"] for head in asked] == ["sizes", "counts", "moments", "scores"]
    assert "1 clients were lost on the way" in (tmp_path / "server" / "report.html").read_text()
    assert not list((tmp_path / "site1").glob("*/result"))


def test_too_few_sites_end_the_study_with_a_sentence(tmp_path: Path) -> None:
    def change(node: int, asked: dict[str, Any], answer: Any) -> Any:
        return Failure("gone") if node > 101 and asked.get("phase") == "moments" else answer

    with pytest.raises(EngineError, match="2 of 4 sites answered, and a secure sum needs 3"):
        served(tables(4), tmp_path, change)


def test_a_site_answers_no_question_for_single_clients(tmp_path: Path) -> None:
    _, nodes, _ = served(tables(4), tmp_path, seeds=1)
    asked = [m for m in (wire.unpack(m) for n, m in nodes.sent if n == 100) if m[0]["do"] == "ask"]
    head, tree = asked[-1]
    for changed in ({"reduce": None}, {"phase": "told", "reduce": None}, {"reduce": ["SumBy", 5]}, {"secure": None}):
        with pytest.raises(CoterieError):
            nodes.sites[100].answer(wire.pack(head | {"number": head["number"] + 1000} | changed, tree))


STUDY = """\
[data]
client = "who"
target = "y"
features = ["a", "b", "c"]
kind = "classification"

[compare]
{metric}

[secure]
sites = {sites}
"""


def test_a_file_with_both_sections_is_a_study_of_sums(tmp_path: Path) -> None:
    lines = json.dumps(keys(tmp_path, 3)[1])
    job = job_of(STUDY.format(metric="", sites=lines), tmp_path)
    assert isinstance(job.algorithm, SummedStudy)
    with pytest.raises(ConfigError, match="needs single clients' numbers"):
        job_of(STUDY.format(metric='metric = "auc"', sites=lines), tmp_path)
    with pytest.raises(ConfigError, match="known by their public keys"):
        job_of(STUDY.format(metric="", sites="3"), tmp_path)
