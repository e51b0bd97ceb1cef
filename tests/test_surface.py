"""The public surface: few names at the top, settings by name, the same word for the same thing, and old spellings that
still work with a warning that names the new one."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys
import warnings
from collections.abc import Iterator
from operator import attrgetter
from types import ModuleType
from typing import Any, get_type_hints

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, clone

import coterie as ct
from coterie.algorithms import ALGORITHMS
from coterie.base.deprecated import GONE, NAMES, POSITIONS, SETTINGS, SQUARED
from coterie.cli.config import Config
from coterie.learning.local_steps import LocalSteps
from coterie.training.sweeps import with_path

STEPS = ct.LocalSGD(steps=3, lr=0.2)
KINDS = {kind.__name__: kind for kind in ALGORITHMS.values()}
ROOMS = ("robust", "engines", "exchange", "errors", "privacy", "incentives", "histograms", "training", "estimation")
LEFT_TO_OTHERS = {"decide", "Decision"}


def offered() -> Iterator[tuple[str, Any]]:
    """Everything public that can be called, once, under the name that users write."""
    seen: set[int] = set()
    for room in ("", *ROOMS, "datasets", "models", "metrics", "schedules"):
        module = getattr(ct, room) if room else ct
        for name in getattr(module, "__all__", None) or [n for n in vars(module) if not n.startswith("_")]:
            thing = getattr(module, name)
            if callable(thing) and not isinstance(thing, ModuleType) and id(thing) not in seen:
                seen.add(id(thing))
                yield f"{room}.{name}".lstrip("."), thing


PUBLIC = dict(offered())
ESTIMATORS = {name: kind for name, kind in PUBLIC.items() if isinstance(kind, type) and issubclass(kind, BaseEstimator)}


# ---- few names ---------------------------------------------------------------------------------------------------------


def test_at_most_forty_names_at_the_top_are_no_algorithms() -> None:
    names = set(ct.__all__) - set(KINDS) - LEFT_TO_OTHERS
    assert len(names) <= 40, sorted(names)
    assert {"fit", "compare", "advise", "Federation", "Task", "Privacy", "LocalSGD", "LocalAdam", "Result"} <= names
    assert set(ROOMS) <= names
    assert {name for name in dir(ct) if not name.startswith("_")} == set(ct.__all__)


@pytest.mark.parametrize("name", ["", "LocalSGD", "FedAvg", "errors", "exchange"])
def test_a_name_loads_neither_the_pricing_game_nor_the_page(name: str) -> None:
    """The first access of a name imports its room and what that needs; `import coterie` imports no torch and no NumPy."""
    told = f"import coterie as ct, sys; {f'ct.{name}' if name else 'pass'}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True).stdout.split()
    unwanted = {"coterie.incentives", "coterie.report", "coterie.cli", "coterie.comparison", "plotly", "matplotlib"}
    unwanted |= {"torch", "numpy", "pandas", "sklearn"} if name in ("", "errors", "exchange") else {"sklearn.cluster"}
    assert not unwanted & set(loaded)


# ---- the same word for the same thing ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_settings_of_an_algorithm_are_given_by_name_and_local_stands_first(name: str) -> None:
    parameters = inspect.signature(KINDS[name]).parameters
    by_place = [n for n, p in parameters.items() if p.kind is not inspect.Parameter.KEYWORD_ONLY]
    assert by_place == (["local"] if "local" in parameters else [])
    assert "local" not in parameters or next(iter(parameters)) == "local"


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_argument_has_the_word_that_all_others_use(name: str) -> None:
    """`clusters` is the number of groups; `noise` is how the noise of privacy is drawn; estimators say `random_state`."""
    try:
        parameters = inspect.signature(PUBLIC[name]).parameters
    except ValueError:
        return
    assert not {"n_clusters", "n_components", "components", "k"} & set(parameters) - _OTHER_WORDS.get(name, set())
    if "noise" in parameters and name not in _OTHER_WORDS:
        assert "float" not in str(parameters["noise"].annotation), f"{name}: a number is a noise_variance"
    if name in ESTIMATORS:
        assert not {"seed", "restarts"} & set(parameters)


_OTHER_WORDS = {"privacy.NoisyPower": {"n_components"}}  # directions of a subspace, not groups


def test_explain_gives_text_and_summary_gives_a_frame() -> None:
    told = {"explain": str, "summary": pd.DataFrame, "verdict": str}
    found = []
    for name, kind in PUBLIC.items():
        for method, wanted in told.items():
            made = getattr(kind, method, None) if isinstance(kind, type) else None
            if made is not None:
                found.append(f"{name}.{method}")
                assert get_type_hints(made, {"pd": pd, **vars(ct.training)})["return"] is wanted, found[-1]
    assert len(found) >= 6, found


# ---- old spellings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("old", NAMES)
def test_a_former_name_is_the_new_thing_with_a_warning(old: str) -> None:
    assert old not in ct.__all__
    with pytest.warns(FutureWarning, match=rf"ct\.{old} is now ct\.{NAMES[old]}; .* one more release") as caught:
        assert getattr(ct, old) is attrgetter(NAMES[old])(ct)
    assert len(caught) == 1
    assert caught[0].filename == __file__, "the warning shows the user's line"


def test_a_former_name_can_be_imported() -> None:
    with pytest.warns(ct.errors.OldSpelling, match=r"ct\.Ask is now ct\.exchange\.Ask"):
        from coterie import Ask  # type: ignore[attr-defined]
    assert Ask is ct.exchange.Ask


def _value(kind: Any, name: str) -> Any:
    """A value of a setting that is not its default."""
    usual = inspect.signature(kind).parameters[name].default
    return 7 if isinstance(usual, int) else 0.25


RENAMED = [(name, old, new) for name, names in SETTINGS.items() for old, new in names.items() if new.isidentifier()]


@pytest.mark.parametrize(("name", "old", "new"), RENAMED)
def test_a_former_setting_is_the_new_one_with_a_warning(name: str, old: str, new: str) -> None:
    (target,) = [thing for full, thing in PUBLIC.items() if full.rpartition(".")[2] == name] or [_TRUTH]
    if name in SQUARED:
        return  # below
    value = _value(target, new)
    with pytest.warns(FutureWarning, match=f"In {name}, {old} is now {new}; .* one more release") as caught:
        made = target(**{old: value})
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert getattr(made, new) == value
    assert repr(made) == repr(target(**{new: value}))
    with pytest.warns(FutureWarning, match=f"{old} is now {new}"):
        assert getattr(made, old) == value
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dataclasses.replace(made) if dataclasses.is_dataclass(made) else clone(made)
    if isinstance(made, BaseEstimator):
        with pytest.warns(FutureWarning, match=f"{old} is now {new}"):
            assert getattr(target().set_params(**{old: value}), new) == value


_TRUTH = type(ct.datasets.linear_model(clients=2, samples=2, features=2)[1])


@pytest.mark.parametrize("make", [ct.datasets.linear_model, ct.datasets.blobs])
def test_a_deviation_of_the_last_release_becomes_a_variance(make: Any) -> None:
    with pytest.warns(FutureWarning, match="noise is now noise_variance"):
        old, truth = make(noise=0.3, features=3)
    new, _ = make(noise_variance=0.3**2, features=3)
    assert np.array_equal(old.x, new.x)
    assert np.array_equal(old.y, new.y)
    if make is ct.datasets.linear_model:
        assert truth.noise_variance == 0.3**2
        with pytest.warns(FutureWarning):
            assert truth.noise == 0.3
    with pytest.raises(ct.errors.DataError, match="noise_variance must be ≥ 0"):
        make(noise_variance=-1.0, features=3)


def _old_values(kind: Any, order: tuple[str, ...]) -> dict[str, Any]:
    usual = {
        f.name: f.default_factory() if callable(f.default_factory) else f.default for f in dataclasses.fields(kind)
    }
    return {name: STEPS if isinstance(usual[name], LocalSteps) else usual[name] for name in order if name in usual}


@pytest.mark.parametrize("name", POSITIONS)
def test_settings_by_position_are_those_by_name_with_a_warning(name: str) -> None:
    """In the order of the last release. `IFCA` also had settings that are rewritten; test_ifca_parts.py has them."""
    kind, order = KINDS[name], POSITIONS[name]
    order = order[: order.index("stop_after")] if "stop_after" in order else order
    gone = GONE.get(name, ("", {}))[1]
    while order[-1] in gone:
        order = order[:-1]
    values = _old_values(kind, order)
    assert tuple(values) == tuple(key for key in order if key not in gone), "every name of the table is a setting"
    with pytest.warns(FutureWarning) as caught:
        made = kind(*(values.get(key, gone.get(key)) for key in order))
    assert caught[0].filename == __file__
    assert str(caught[0].message).startswith(f"{name} takes {order[0]}=…")
    assert made == kind(**values)
    if order[0] != "local":
        with pytest.warns(FutureWarning, match=f"{name} takes {order[0]}=… by name"):
            assert kind(next(iter(values.values()))) == kind()


SINCE = {  # they never took settings by position
    "FedALA", "FedAMP", "FedBABU", "FedDyn", "FedPAC", "FedPer", "FedProto", "FedRC", "FedROD", "FedSoft", "FeSEM",
    "LGFedAvg", "MOON", "PACFL",
}  # fmt: skip


def test_every_algorithm_with_more_than_one_setting_has_its_former_order() -> None:
    several = {name for name, kind in KINDS.items() if len(dataclasses.fields(kind)) > 1}
    assert set(POSITIONS) == several - SINCE


def test_two_settings_by_position_with_steps_in_the_second_place() -> None:
    with pytest.warns(FutureWarning, match="IFCA takes clusters=…, local=… by name"):
        assert ct.IFCA(3, STEPS) == ct.IFCA(STEPS, clusters=3)  # type: ignore[arg-type, misc]


@pytest.mark.parametrize(
    ("section", "old", "new", "value"),
    [
        ("algorithm", "noise", "noise_variance", 0.25),
        ("algorithm", "models", "clusters", 3),
        ("data", "noise", "", 0.25),
    ],
)
def test_a_configuration_with_former_keys_runs_with_a_warning(section: str, old: str, new: str, value: Any) -> None:
    table: dict[str, Any] = {"data": {"name": "linear_model", "features": 3}, "algorithm": {"name": "discrete_prior"}}
    table[section] |= {old: value}
    with pytest.warns(FutureWarning, match=f"{old} is now {new}"):
        config = Config.parse(table)
    if section == "algorithm":
        with pytest.warns(FutureWarning):
            assert config.algorithm() == ct.DiscretePrior(**{new: value})
    else:
        with pytest.warns(FutureWarning):
            federation = config.federation()
        assert np.array_equal(
            federation.y, ct.datasets.linear_model(features=3, noise_variance=value**2, test_samples=0)[0].y
        )


def test_a_former_key_on_the_command_line_is_one_sentence_on_one_line(tmp_path: Any) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        '[data]\nname = "heart"\n[algorithm]\nname = "fedem"\ncomponents = 2\n'
        f'[run]\nrounds = 1\nout = "{tmp_path / "out"}"\n'
    )
    ran = subprocess.run([sys.executable, "-m", "coterie", "run", str(file)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    (line,) = [line for line in ran.stderr.splitlines() if "components" in line]
    assert line == "In FedEM, components is now clusters; the old spelling works for one more release."
    again = subprocess.run(
        [sys.executable, "-m", "coterie", "resume", str(tmp_path / "out")], capture_output=True, text=True
    )
    assert again.returncode == 0, again.stderr


def test_a_grid_takes_former_settings() -> None:
    with pytest.warns(FutureWarning, match="In DiscretePrior, noise is now noise_variance"):
        assert with_path(ct.DiscretePrior(), "noise", 0.25) == ct.DiscretePrior(noise_variance=0.25)


def test_classes_of_users_have_no_former_settings() -> None:
    @dataclasses.dataclass(frozen=True)
    class FedEM(ct.FedAvg):
        components: int = 3

    assert FedEM(components=5).components == 5
    assert ct.FedAvg(STEPS).local == STEPS
    with pytest.raises(AttributeError, match="stop_after"):
        ct.IFCA().stop_after  # type: ignore[attr-defined]  # noqa: B018
