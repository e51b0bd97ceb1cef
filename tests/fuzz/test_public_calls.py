"""Everything public, called with one wrong argument after the other: a sentence or success, never a raw Python error."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from public_calls import CALLS, Call
from wrong_values import NAN_ONES, WRONG

import coterie as ct

NAN_IS_MEANT = {
    ("privacy.clip_rows", "rows"),  # a row that is not finite becomes zeros: to refuse it would tell of the data
    ("privacy.rate_moments", "successes"),
    ("privacy.public", "value"),  # marks any value at all
    ("privacy.non_private", "value"),
    ("incentives.climb", "state"),  # of whatever kind the learner takes
    ("robust.aggregated", "key"),  # Mean uses neither
    ("robust.aggregated", "start"),
}
TRAINS = {
    "check",
    "fit",
    "compare",
    "advise",
    "best_of",
    "choose_clusters",
    "fit_seeds",
    "grid",
    "LocalSGD",
    "LocalAdam",
}
FEW = ("None", "nan", "text", "object", "masked", "huge", "empty list")


class Late(BaseException):
    """Still at work after the time that a small call may take."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    def late(*_: Any) -> None:
        raise Late

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def fault(run: Callable[..., Any], name: str, argument: str, label: str) -> str:
    """What is wrong with the outcome of a call with a wrong argument; empty if nothing is."""
    try:
        with warnings.catch_warnings(), limited(20):
            warnings.simplefilter("ignore")
            run(**{argument: WRONG[label]()})
    except ct.errors.CoterieError as error:
        text = str(error)
        return "" if text.strip() and "\n" not in text and len(text) < 700 else f"no single sentence: {text[:200]!r}"
    except Late:
        return "still at work after 20 seconds"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    silent = label in NAN_ONES and (name, argument) not in NAN_IS_MEANT
    return "was taken for a value" if silent else ""


def faults(name: str, call: Call, labels: tuple[str, ...], run: Callable[..., Any]) -> list[str]:
    return [
        f"{name}({argument}={label}) {found}"
        for argument in call.names
        for label in labels
        if not (label in ("function", "class") and call.takes_function(argument))
        and (found := fault(run, name, argument, label))
    ]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a path is a right value of some arguments


def quick(name: str) -> bool:
    return name not in TRAINS and not CALLS[name].trains


@pytest.mark.parametrize("name", [name for name in CALLS if quick(name)])
def test_a_wrong_argument_is_refused_in_one_sentence(name: str) -> None:
    assert not faults(name, CALLS[name], tuple(WRONG), CALLS[name].run)


@pytest.mark.parametrize("name", [name for name in CALLS if not quick(name) and name not in TRAINS])
def test_a_wrong_setting_of_what_trains_is_refused_in_one_sentence(name: str) -> None:
    """The class alone is made; the slow test below trains with it."""
    assert not faults(name, CALLS[name], tuple(WRONG), CALLS[name].make)


@pytest.mark.parametrize("name", ["fit", "best_of", "fit_seeds", "grid"])
def test_a_few_wrong_arguments_of_training_are_refused_in_one_sentence(name: str) -> None:
    assert not faults(name, CALLS[name], FEW, CALLS[name].run)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CALLS if not quick(name)])
def test_every_wrong_argument_of_training_is_refused_in_one_sentence(name: str) -> None:
    assert not faults(name, CALLS[name], tuple(WRONG), CALLS[name].run)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(CALLS))
def test_the_valid_calls_are_valid(name: str) -> None:
    """The others would mean little if the call failed for another reason."""
    if name not in {"privacy.adopt", "Federation.from_leaf", "Federation.from_folder", "Federation.load", "load_model"}:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            CALLS[name].run()


def test_the_fuzz_finds_a_raw_error() -> None:
    """The harness itself: what raises, what takes NaN for a number and what says nothing are three faults."""

    def raw(value: Any = 1) -> Any:
        return value + 1

    def silent(value: Any = 1) -> Any:
        return value

    assert "TypeError" in fault(raw, "raw", "value", "text")
    assert fault(silent, "silent", "value", "nan") == "was taken for a value"
    assert not fault(silent, "silent", "value", "0")
