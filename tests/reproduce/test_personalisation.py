"""The study of personal methods, on tiny settings."""

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

import coterie as ct
from coterie.reproduce import personal, personalisation
from coterie.reproduce.registry import experiment
from coterie.reproduce.runner import records, run, table


@pytest.fixture
def tiny(monkeypatch):
    """Twelve random pictures on each of three clients instead of MNIST; two methods."""

    def federation(seed):
        rng = np.random.default_rng(seed)
        x, y = rng.integers(0, 255, (36, 28, 28), np.uint8), rng.integers(0, 10, 36)
        return personalisation.as_federation(x, y, np.full(3, 12), seed, 0.25)

    tiny = replace(personalisation.SETTINGS["mnist"], make=federation)
    monkeypatch.setattr(personalisation, "SETTINGS", {"mnist": tiny})
    names = ("Local", "AdaPeD")
    monkeypatch.setattr(personalisation, "METHODS", {n: personalisation.METHODS[n] for n in names})


def test_a_study_is_resumed_and_shown(tiny, tmp_path):
    out = tmp_path / "study.json"
    call = ["mnist", "--rounds", "1", "--out", str(out)]
    run = CliRunner().invoke(personalisation.app, [*call, "--seeds", "1"], catch_exceptions=False)
    assert run.exit_code == 0
    first = json.loads(out.read_text())
    run = CliRunner().invoke(personalisation.app, [*call, "--seeds", "2"], catch_exceptions=False)
    second = json.loads(out.read_text())
    for name, kept in first["methods"].items():
        assert second["methods"][name]["runs"]["0"] == kept["runs"]["0"]  # the seconds too: it was not run again
        assert set(second["methods"][name]["runs"]) == {"0", "1"}
        assert set(kept["tuning"]) >= {str(r) for r in personalisation.RATES}  # more where the best is at an end
    assert "| AdaPeD |" in run.stdout
    assert CliRunner().invoke(personalisation.app, ["mnist", "--out", str(out), "--only", "X"]).exit_code == 2
    with pytest.raises(ct.ConfigError, match="holds 1 rounds"):
        personalisation.study("mnist", 1, 5, out, [])


def test_a_study_becomes_a_file_of_the_runner(tiny, tmp_path):
    out = tmp_path / "study.json"
    call = ["mnist", "--rounds", "1", "--out", str(out), "--seeds", "2"]
    assert CliRunner().invoke(personalisation.app, call, catch_exceptions=False).exit_code == 0
    personal.convert([str(out)], tmp_path)
    one = replace(experiment("personal-mnist"), cells=lambda scale: {"Local": "Local", "AdaPeD": "AdaPeD"})
    kept = run(one, "quick", 2, tmp_path, lambda line: pytest.fail("it was measured again") if "seed" in line else None)
    assert table(replace(one, claims=lambda found: []), records(kept)).what.tolist() == ["AdaPeD", "Local"]
    study = json.loads(out.read_text())["methods"]["AdaPeD"]["runs"]
    assert records(kept).numbers("AdaPeD", "accuracy") == [study[s]["accuracy"] for s in ("0", "1")]


def test_rates_are_tuned_once_at_paper_scale(tiny, monkeypatch):
    calls = []
    monkeypatch.setattr(personal, "score", lambda *args: calls.append(args[4]) or 0.5)
    monkeypatch.setattr(personal, "SETTINGS", personalisation.SETTINGS)
    one = personal.Personal("mnist")
    tried = [one.measure("Local", seed, "paper")["tuning"] for seed in (0, 1)]
    assert tried[0] == tried[1]
    assert len(calls) == len(tried[0]) + 2
    assert one.measure("Local", 0, "quick")["rate"] == personal.QUICK_RATE
    personal.tuned.cache_clear()
    personal.clients.cache_clear()


def test_the_table_says_who_is_tied():
    runs = {"a": (0.90, 0.92, 0.91), "b": (0.91, 0.90, 0.91), "c": (0.80, 0.82, 0.81)}
    methods = {
        n: {"tuning": {}, "runs": {str(s): {"accuracy": v, "rate": 0.1} for s, v in enumerate(vs)}}
        for n, vs in runs.items()
    }
    lines = personalisation.markdown({"methods": methods}).splitlines()[2:]
    assert [line.split("|")[1].strip() for line in lines] == ["a", "b", "c"]
    assert "best" in lines[0]
    assert "tied" in lines[1]
    assert "tied" not in lines[2]
    assert "10.00" in lines[2]


@pytest.mark.parametrize("kind", ["labels", "features", "concept", "sizes"])
def test_the_small_settings_differ_in_one_respect(kind):
    fed = personalisation.digits(0, kind)
    classes = [len(np.unique(fed.train(c)[1])) for c in fed.clients]
    assert len(fed) == 20
    assert (max(classes) <= 5) == (kind == "labels")
    assert (fed.n_train.max() > 3 * fed.n_train.min()) == (kind == "sizes")
