"""The study of personal methods, on tiny settings."""

from dataclasses import replace

import numpy as np
import pytest

from reproductions import personal, personalisation
from reproductions.experiment import Records
from reproductions.personalisation import REPORTED, SETTINGS, for_tuning
from reproductions.registry import experiment
from reproductions.runner import run


@pytest.fixture
def tiny(monkeypatch):
    """Twelve random pictures on each of three clients instead of MNIST."""

    def federation(seed):
        rng = np.random.default_rng(seed)
        x, y = rng.integers(0, 255, (36, 28, 28), np.uint8), rng.integers(0, 10, 36)
        return personalisation.as_federation(x, y, np.full(3, 12), seed, 0.25)

    tiny = replace(personalisation.SETTINGS["mnist"], make=federation)
    monkeypatch.setattr(personal, "SETTINGS", {"mnist": tiny})
    monkeypatch.setattr(personal, "TUNED", {})
    personal.clients.cache_clear()
    yield
    personal.clients.cache_clear()


def test_rates_are_tuned_once_with_all_rounds(tiny, monkeypatch, tmp_path):
    """An interrupted call's rates are not tried again; the best of them is used."""
    rounds = []
    monkeypatch.setattr(personal, "score", lambda *args: rounds.append(args[3]) or (0.5 if args[4] == 0.15 else 0.4))
    one = replace(experiment("personal-mnist"), cells=lambda scale: {"Local": "Local"})
    first = run(one, "paper", 1, tmp_path, lambda line: None)["cells"]["Local"]["0"]
    assert first["tuning"] == {"0.05": 0.4, "0.15": 0.5}
    assert (first["rate"], first["accuracy"]) == (0.15, 0.5)
    personal.TUNED.clear()  # another process
    second = run(one, "paper", 3, tmp_path, lambda line: None)["cells"]["Local"]
    assert [second[seed]["tuning"] for seed in ("1", "2")] == [first["tuning"]] * 2
    assert rounds == [personalisation.SETTINGS["mnist"].full] * (2 + 3)
    assert personal.Personal("mnist").measure("Local", 0, "quick")["rate"] == personal.QUICK_RATE


def test_the_grid_grows_at_its_edges_or_between():
    tuning = {"0.05": 0.4, "0.15": 0.5}
    assert personalisation.next_rate({}, wider=True) == 0.05
    assert personalisation.next_rate(tuning, wider=False) is None
    assert personalisation.next_rate({"0.05": 0.5, "0.15": 0.4}, wider=False) == 0.1
    assert personalisation.next_rate({"0.05": 0.4, "0.1": 0.5, "0.15": 0.4}, wider=False) is None
    assert personalisation.next_rate(tuning, wider=True) == 0.405
    assert personalisation.next_rate(tuning | {"0.405": float("nan")}, wider=True) is None
    assert personalisation.next_rate({"0.05": 0.5, "0.15": 0.4}, wider=True) == 0.0185


def test_methods_run_and_are_scored(tiny):
    fed = personal.SETTINGS["mnist"].make(0)
    for name in ("Local", "AdaPeD, every client"):
        assert 0 <= personalisation.score(name, personal.SETTINGS["mnist"], fed, 1, 0.1, 0) <= 1


def test_the_table_says_who_cannot_be_told_from_the_best():
    runs = {"a": (0.90, 0.92, 0.91), "b": (0.91, 0.90, 0.91), "c": (0.80, 0.82, 0.81), "d": (0.9, float("nan"), 0.9)}
    cells = {n: {str(s): {"accuracy": v, "rate": 0.1} for s, v in enumerate(vs)} for n, vs in runs.items()}
    shown = personal.standing(Records("paper", cells)).set_index("method")
    assert shown.index.tolist() == ["a", "b", "c", "d"]
    assert shown["behind the best"].tolist() == ["best", "0.33 (undecided)", "10.00", ""]
    assert shown["accuracy (%)"]["d"] == "diverged in 1 of 3"


@pytest.mark.parametrize("kind", ["labels", "features", "concept", "sizes"])
def test_the_small_settings_differ_in_one_respect(kind):
    fed = personalisation.digits(0, kind)
    classes = [len(np.unique(fed.train(c)[1])) for c in fed.clients]
    assert len(fed) == 20
    assert (max(classes) <= 5) == (kind == "labels")
    assert (fed.n_train.max() > 3 * fed.n_train.min()) == (kind == "sizes")


@pytest.mark.parametrize("kind", ["labels", "features", "concept", "sizes"])
def test_no_picture_that_a_reported_seed_tests_on_chooses_a_rate(kind):
    make = SETTINGS[kind].make
    tuning, plain = for_tuning(make), make(1000).holdout(0.2, 0)
    tested = {np.sort(row).tobytes() for seed in range(REPORTED) for row in make(seed).rows("test")[0]}
    kept = [np.sort(row).tobytes() for row in tuning.rows("test")[0]]
    assert kept
    assert not tested.intersection(kept)
    assert len(kept) < int(plain.n_test.sum())  # some had to go
    assert np.array_equal(tuning.n_train, plain.n_train)
    for part in zip(tuning.rows("train"), plain.rows("train"), strict=True):
        assert np.array_equal(*part)  # what is trained on stays
