"""One setting is found and replaced wherever it is: in an algorithm, or in the one it wraps; odd ones are refused."""

import contextlib
import dataclasses
from typing import Any

import pytest

import coterie as ct
from coterie.algorithms import ALGORITHMS
from coterie.base.settings import setting, with_setting

FAST = ct.LocalSGD(steps=3, lr=0.2)


def test_a_setting_is_found_and_replaced_in_the_algorithm_itself() -> None:
    changed = with_setting(ct.FedAvg(server_lr=0.5), "local", FAST)
    assert changed == ct.FedAvg(local=FAST, server_lr=0.5)
    assert setting(changed, "local") == FAST


def test_a_setting_is_found_and_replaced_inside_a_base() -> None:
    tuned = ct.FineTuned(base=ct.FineTuned(base=ct.IFCA(local=FAST)), tune=FAST)
    changed = with_setting(tuned, "clusters", 3)
    assert changed == ct.FineTuned(base=ct.FineTuned(base=ct.IFCA(clusters=3, local=FAST)), tune=FAST)
    assert setting(changed, "clusters") == 3
    assert setting(tuned, "clusters", 0) is None  # it has the setting, and the setting is None


def test_a_setting_that_nobody_has_is_neither_found_nor_replaced() -> None:
    for owner in (ct.FedAvg(), ct.FineTuned(), ct.FedAvg, object()):
        assert setting(owner, "clusters", 0) == 0
        assert with_setting(owner, "clusters", 3) is None


def test_a_property_is_not_a_setting() -> None:
    assert ct.MyopicClustering(clusters=2).local.steps == 1
    assert setting(ct.MyopicClustering(clusters=2), "local") is None


@pytest.mark.parametrize("kind", [*ALGORITHMS.values(), ct.LocalSGD, ct.LocalAdam], ids=lambda kind: kind.__name__)
def test_a_setting_of_another_kind_is_refused_in_a_sentence(kind: Any) -> None:
    """Whatever is given for whatever setting: accepted, or a ConfigError; never an error of Python's operators."""
    if not dataclasses.is_dataclass(kind):
        return
    needed = {f.name: 2 for f in dataclasses.fields(kind) if f.default is f.default_factory is dataclasses.MISSING}
    for field in dataclasses.fields(kind):
        for odd in (ct.LocalSGD(), "x", [1], {}, object(), float("nan"), True):
            with contextlib.suppress(ct.errors.ConfigError):
                kind(**needed | {field.name: odd})
