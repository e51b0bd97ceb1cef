"""Every public argument is checked by one table: wrong types are refused with one sentence, before anything runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import coterie as ct
from coterie.base.arguments import TABLE, check_arguments

NAN = float("nan")
X = np.random.default_rng(0).normal(size=(12, 2))
Y = np.tile([0, 1], 6)
PAIRS = {"a": (X, Y), "b": (-X, Y)}
FED = ct.Federation.from_arrays(PAIRS)
FRAME = pd.DataFrame({"u": X[:, 0], "v": X[:, 1], "y": Y, "c": ["a", "b"] * 6})

WRONG_OF_FIT: dict[str, list[Any]] = {
    "rounds": [NAN, 1.5, "3", None, True, -1, [2]],
    "seed": ["a", 1.5, None, [1], -1],
    "checkpoint_every": [0, 1.5, "x", None],
    "evaluate_every": [-1, 0.5, "x", None],
    "evaluate_clients": [0, 1.5, "x"],
    "callbacks": [3, [3], "print", print],
    "channels": [3, ["x"], "dropout", ct.exchange.Dropout(0.1)],
    "out": [3, 1.5, ["x"]],
    "resume": ["no", 3],
    "alone": [3, "tune", None],
    "privacy": [3, "yes", {"epsilon": 1}],
    "task": [3, "logistic"],
    "device": [3, ["cpu"]],
    "engine": [3, None, ["local"]],
    "cohort": ["some", [1], True],
    "progress": ["yes", 3],
}


@pytest.mark.parametrize("name", WRONG_OF_FIT)
def test_fit_refuses_wrong_arguments_with_a_sentence(name: str) -> None:
    for value in WRONG_OF_FIT[name]:
        with pytest.raises(ct.errors.CoterieError, match=name):
            ct.fit(ct.FedAvg(), FED, **({"rounds": 1} | {name: value}))


@pytest.mark.parametrize("algorithm", [3, None, "fedavg", ct.FedAvg, FED])
def test_fit_refuses_what_is_no_algorithm(algorithm: Any) -> None:
    with pytest.raises(ct.errors.ConfigError, match="algorithm must be an algorithm such as FedAvg"):
        ct.fit(algorithm, FED, rounds=1)


@pytest.mark.parametrize("federation", [3, None, PAIRS, ct.Federation])
def test_fit_refuses_what_is_no_federation(federation: Any) -> None:
    with pytest.raises(ct.errors.ConfigError, match="federation must be a Federation"):
        ct.fit(ct.FedAvg(), federation, rounds=1)


def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    ours, theirs = (ct.fit(ct.FedAvg(), FED, rounds=k(2), seed=k(3), progress=False) for k in (int, np.int64))
    assert ours.about["rounds"] == theirs.about["rounds"] == 2
    assert type(theirs.about["seed"]) is int
    pd.testing.assert_frame_equal(ours.scores(), theirs.scores())


OTHERS = [
    (lambda **k: ct.compare(FED, **k), {"seeds": ["x", 1.5, None, 0], "rounds": [NAN, 1.5, 0], "progress": [3]}),
    (lambda **k: ct.compare(FED, **k), {"metric": [3, ["mse"]], "task": [3], "privacy": [3]}),
    (lambda **k: ct.fit_seeds(ct.FedAvg(), FED, **k), {"seeds": ["x", 1.5, None, [0.5]], "processes": [0, "x"]}),
    (
        lambda **k: ct.grid(ct.FedAvg(), {"local.lr": [0.1]}, FED, **k),
        {"rounds": [0, NAN], "every": [0], "seed": ["x"]},
    ),
    (
        lambda **k: ct.Federation.from_arrays(PAIRS, **k),
        {"seed": ["x", None, 0.5], "test_fraction": ["x", NAN, None, [0]]},
    ),
    (
        lambda **k: ct.Federation.from_arrays(PAIRS, **k),
        {"kind": [3, "x"], "one_class": [3, "x"], "scale_bytes": ["x"]},
    ),
    (
        lambda **k: ct.Federation.from_frame(FRAME, **({"client": "c", "target": "y"} | k)),
        {"seed": ["x", 0.5], "test_fraction": ["x"], "max_categories": ["x"], "min_rows": ["x"]},
    ),
    (
        lambda **k: ct.comparison.decide(X, Y, FRAME["c"], **k),
        {"folds": [1, 2.5, "x", None], "seed": ["x", -1], "level": ["x", 2]},
    ),
    (lambda **k: ct.comparison.decide(X, Y, FRAME["c"], **k), {"repeats": ["x", 0], "metric": [3], "progress": [3]}),
    (lambda **k: ct.advise(samples=np.ones((4, 3)), **k), {"seed": ["x", None], "level": ["x", None], "counts": [3]}),
    (
        lambda **k: ct.engines.LocalEngine(**k),
        {"workers": ["x", 0, 1.5, None], "chunk": ["x", 0], "cache_bytes": ["x", None]},
    ),
    (lambda **k: ct.Task(lambda: torch.nn.Linear(2, 2), **k), {"loss": [3, None, "x"]}),
]


@pytest.mark.parametrize(("call", "wrong"), OTHERS)
def test_other_entrances_refuse_them_too(call: Any, wrong: dict[str, list[Any]]) -> None:
    for name, values in wrong.items():
        for value in values:
            with pytest.raises(ct.errors.CoterieError, match=name):
                call(**{name: value})


def test_cells_that_are_lists_are_refused() -> None:
    lists = [[1], [2]] * 6
    for column in ("u", "y", "c"):
        with pytest.raises(ct.errors.CoterieError, match=f"'{column}'"):
            ct.Federation.from_frame(FRAME.assign(**{column: lists}), client="c", target="y")


def test_a_number_that_no_float_can_hold_is_refused() -> None:
    with pytest.raises(ct.errors.ConfigError, match="level must be a number between 0 and 1; got 1000"):
        check_arguments({"level": 10**400})


def test_a_long_value_is_cut() -> None:
    with pytest.raises(ct.errors.ConfigError) as refused:
        check_arguments({"rounds": "x" * 500})
    assert len(str(refused.value)) < 150


def test_the_table_is_sorted() -> None:
    assert list(TABLE) == sorted(TABLE)
