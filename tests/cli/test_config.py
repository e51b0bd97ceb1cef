"""A run as TOML: what it builds, and one clear sentence for every mistake."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import coterie as ct
from coterie.aggregation import Aggregator
from coterie.algorithms import ALGORITHMS
from coterie.cli.build import build
from coterie.cli.config import Config
from coterie.errors import ConfigError
from coterie.learning.models import MODELS
from coterie.training.run import Run

ROOT = Path(__file__).parents[2]
GOOD: dict[str, Any] = {"data": {"name": "heart"}, "algorithm": {"name": "fedavg", "local": {"lr": 0.5}}}


@dataclass(frozen=True)
class Level:
    level: float = 0.5


@dataclass(frozen=True)
class Robust:
    """Stands for algorithms that do not exist yet."""

    clusters: int
    local: ct.LocalSGD = field(default_factory=ct.LocalSGD)
    aggregate: Aggregator | None = None
    radius: Level | float = field(default_factory=Level)
    widths: tuple[int, ...] = ()
    clip: float | None = 1.0


def test_nested_sections_become_the_algorithm() -> None:
    table = {
        "name": "finetuned",
        "base": {"name": "fedavg", "server_lr": 1, "local": {"epochs": 2, "batch_size": "none"}},
        "tune": {"lr": 0.01},
    }
    built = Config.parse(GOOD | {"algorithm": table}).algorithm()
    expected = ct.FedAvg(ct.LocalSGD(epochs=2, batch_size=None), server_lr=1.0)
    assert built == ct.FineTuned(base=expected, tune=ct.LocalSGD(lr=0.01))


def test_local_steps_are_sgd_unless_named() -> None:
    for local, expected in (
        ({"lr": 0.5}, ct.LocalSGD(lr=0.5)),
        ({"name": "LocalAdam", "lr": 0.5}, ct.LocalAdam(lr=0.5)),
    ):
        assert Config.parse(GOOD | {"algorithm": {"name": "fedavg", "local": local}}).algorithm() == ct.FedAvg(expected)
    with pytest.raises(ct.errors.ConfigError, match=r"algorithm.local must be .*; got 3"):
        Config.parse(GOOD | {"algorithm": {"name": "fedavg", "local": 3}}).algorithm()


def test_dataclasses_unknown_to_the_config_are_built_from_their_fields() -> None:
    table = {
        "clusters": 3,
        "local": {"lr": 0.2},
        "aggregate": {"name": "trimmed_mean", "n_corrupted": 2},
        "radius": {"level": 0.9},
        "widths": [4, 5],
        "clip": "none",
    }
    expected = Robust(3, ct.LocalSGD(lr=0.2), ct.robust.TrimmedMean(2), Level(0.9), (4, 5), None)
    assert build(Robust, table, "algorithm") == expected
    assert build(Robust, {"clusters": 1, "aggregate": "Median", "radius": 2}, "algorithm").radius == 2.0


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({}, "algorithm.clusters is missing"),
        ({"clusters": 1.5}, "algorithm.clusters must be a whole number; got 1.5"),
        ({"clusters": True}, "algorithm.clusters must be a whole number; got True"),
        ({"clusters": 1, "local": {"learning_rat": 1}}, "Unknown key algorithm.local.learning_rat"),
        ({"clusters": 1, "local": {"lr": "fast"}}, "algorithm.local.lr must be a number; got 'fast'"),
        ({"clusters": 1, "local": {"lr": -1.0}}, "algorithm.local: LocalSGD needs lr to be a finite number of at least 0"),
        ({"clusters": 1, "local": 3}, r"algorithm.local must be a section \(LocalSGD\); got 3"),
        ({"clusters": 1, "aggregate": {"name": "medain"}}, "aggregate.name 'medain' is unknown. Did you mean 'median'"),
        ({"clusters": 1, "aggregate": {"n_corrupted": 2}}, "algorithm.aggregate needs a name"),
        ({"clusters": 1, "widths": "wide"}, "algorithm.widths must be a list of whole numbers; got 'wide'"),
        ({"clusters": 1, "clip": {"a": 1}}, "algorithm.clip must be a number; got a section"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_named(table: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build(Robust, table, "algorithm")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"runn": {}}, r"Unknown section \[runn\]. Did you mean 'run'"),
        ({"run": {"round": 3}}, "Unknown key run.round. Did you mean 'rounds'"),
        ({"run": {"rounds": "many"}}, "run.rounds must be a whole number; got 'many'"),
        ({"run": {"rounds": 0}}, "run.rounds must be greater than or equal to 1; got 0"),
        ({"run": {"engine": "lopo"}}, "run.engine 'lopo' is unknown. Did you mean 'loop'"),
        ({"run": 3}, r"\[run\] must be a section; got 3"),
        ({"algorithm": {"name": "fedagv"}}, "algorithm.name 'fedagv' is unknown. Did you mean 'fedavg'"),
        ({"algorithm": {}}, "algorithm.name is missing"),
        ({"algorithm": {"name": "fedavg", "servr_lr": 1}}, "Unknown key algorithm.servr_lr. Did you mean 'server_lr'"),
        ({"data": {"name": "hart"}}, "data.name 'hart' is unknown. Did you mean 'heart'"),
        ({"data": {"name": "heart", "sed": 1}}, "Unknown key data.sed. Did you mean 'seed'"),
        ({"data": {"name": "digits", "transform": "turn"}}, "data.transform must be one of 'rotate'"),
        ({"data": {}}, r"\[data\] needs either name .* or path"),
        ({"data": {"path": "a.csv", "client": "c"}}, "data.target is missing"),
        ({"data": {"path": "a.csv", "client": "c", "target": "t", "excludes": ["a"]}}, "Did you mean 'exclude'"),
        ({"data": {"path": "a.csv", "client": "c", "target": "t", "kind": "classes"}}, "data.kind must be one of"),
        ({"data": {"path": "a.csv", "client": "c", "target": "t", "features": "a"}}, "data.features must be a list of"),
        ({"task": {"model": "mpl"}}, "task.model 'mpl' is unknown. Did you mean 'mlp'"),
        ({"task": {"model": "mlp", "hiden": 3}}, "Unknown key task.hiden. Did you mean 'hidden'"),
        ({"task": {"model": "mlp"}}, "task.hidden is missing"),
        ({"task": {"hidden": 3}}, "Unknown key task.hidden.*Sizes need a named model"),
        ({"task": {"los": "mse"}}, "Unknown key task.los. Did you mean 'loss'"),
    ],
)
def test_a_mistake_is_one_sentence_with_its_place(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        Config.parse(GOOD | change)
    assert "\n" not in str(caught.value)
    assert "pydantic" not in str(caught.value)


def test_every_algorithm_of_the_registry_can_be_configured() -> None:
    for name in ALGORITHMS:
        assert Config.parse(GOOD | {"algorithm": {"name": name}}).algorithm() == ALGORITHMS[name]()


def test_a_rule_is_named_or_that_of_the_default() -> None:
    """`radius` is any function of distances; the rules beside the default may be named."""
    head = {"name": "federated_clustering"}
    built = [
        Config.parse(GOOD | {"algorithm": head | {"radius": radius}}).algorithm().radius
        for radius in ({"name": "fixed", "radius": 2.0}, {"p": 30}, 0.5)
    ]
    assert built == [ct.robust.Fixed(2.0), ct.robust.Percentile(30.0), 0.5]
    with pytest.raises(ConfigError, match=r"algorithm.radius.name 'fixd' is unknown. Did you mean 'fixed'"):
        Config.parse(GOOD | {"algorithm": head | {"radius": {"name": "fixd"}}})


@pytest.mark.parametrize("rule", ["Percentile", "percentile", "fedavg", "dropout", "Counter"])
def test_only_what_the_registry_names_can_stand_for_an_aggregator(rule: str) -> None:
    """Other callables of the library, and of other registries, are refused wherever their files lie."""
    with pytest.raises(ConfigError, match=f"algorithm.aggregate '{rule}' is unknown. .*mean, median"):
        Config.parse(GOOD | {"algorithm": {"name": "fedavg", "aggregate": rule}})


def test_channels_and_samplers_are_named() -> None:
    channels = [{"name": "dropout", "rate": 0.3}, {"name": "sign_flip", "clients": ["va"]}]
    config = Config.parse(GOOD | {"channels": channels, "run": {"cohort": {"name": "poisson", "rate": 0.5}}})
    assert config.channels() == [ct.exchange.Dropout(0.3), ct.exchange.attacks.SignFlip(["va"])]
    assert config.cohort() == ct.training.Poisson(0.5)
    with pytest.raises(ConfigError, match=r"channels\[0\].name 'dropuot' is unknown. Did you mean 'dropout'"):
        Config.parse(GOOD | {"channels": [{"name": "dropuot"}]})
    with pytest.raises(ConfigError, match=r"run.cohort.name 'median' is unknown"):
        Config.parse(GOOD | {"run": {"cohort": {"name": "median"}}})


def test_a_missing_section_is_named() -> None:
    with pytest.raises(ConfigError, match=r"The section \[algorithm\] is missing"):
        Config.parse({"data": {"name": "heart"}})


def test_files_that_are_no_config(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("[data\nname=1")
    with pytest.raises(ConfigError, match=r"is not valid TOML: .*line 1"):
        Config.load(tmp_path / "run.toml")
    with pytest.raises(ConfigError, match=r"There is no config file .*rum.toml. Did you mean 'run.toml'"):
        Config.load(tmp_path / "rum.toml")


def test_models_take_their_sizes_from_the_data() -> None:
    data = {"name": "digits", "flatten": False, "clients": 8, "clusters": 2}
    for name, sizes in (("linear", {}), ("mlp", {"hidden": [7]}), ("two_conv", {"width": 2, "hidden": 5})):
        config = Config.parse(GOOD | {"data": data, "task": {"model": name, **sizes, "metric": "log_loss"}})
        federation = config.federation()
        task = config.task(federation)
        task.check(federation)
        assert task.metrics == ("log_loss",)
    assert set(MODELS) >= {"linear", "mlp", "small_cnn", "lenet5", "two_conv"}


def test_tables_are_looked_for_beside_the_config(tmp_path: Path) -> None:
    ct.datasets.heart_frame().to_csv(tmp_path / "heart.csv", index=False)
    text = '[data]\npath="heart.csv"\nclient="hospital"\ntarget="target"\nexclude=["age"]\n[algorithm]\nname="local"\n'
    (tmp_path / "run.toml").write_text(text)
    federation = Config.load(tmp_path / "run.toml").federation()
    assert len(federation) == 4
    assert federation.columns is not None
    assert "age" not in federation.columns


def test_generators_and_sets_that_are_no_federation() -> None:
    made = Config.parse(GOOD | {"data": {"name": "linear_model", "clients": 4, "features": 3, "samples": 5}})
    assert len(made.federation()) == 4
    with pytest.raises(ConfigError, match="'elections' gives no clients"):
        Config.parse(GOOD | {"data": {"name": "elections"}}).federation()


def test_the_example_is_valid() -> None:
    config = Config.load(ROOT / "examples" / "config.toml")
    assert isinstance(config.algorithm(), ct.FineTuned)
    assert config.run.rounds == 10


def test_everything_in_a_run_s_section_reaches_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is made; only its saving is watched."""
    saved: list[int] = []
    save = Run.save

    def watched(self: Run) -> None:
        saved.append(self.done)
        save(self)

    monkeypatch.setattr(Run, "save", watched)
    told = {"rounds": 5, "seed": 3, "cohort": 3, "engine": "loop", "evaluate_every": 2, "checkpoint_every": 2}
    config = {"data": {"name": "heart"}, "algorithm": {"name": "federated_clustering", "lr": 0.1}, "run": told}
    result = Config.parse(config | {"channels": [{"name": "dropout", "rate": 0.4}]}).fit(out=tmp_path)
    assert saved == [2, 4, 5]
    assert (result.about["seed"], result.about["rounds"]) == (3, 5)
    assert set(result.history["clients"]) == {3}
    assert result.history["lost"].sum() > 0
    assert isinstance(result.evaluation.engine, ct.engines.LoopEngine)
    assert list(result.history["test_accuracy"].notna()) == [False, True, False, True, True]


def test_the_privacy_of_a_file_reaches_the_run(tmp_path: Path) -> None:
    data = {"name": "linear_model", "clients": 8, "features": 2, "samples": 6}
    budget = {"epsilon": 3.0, "delta": 1e-3, "clip": 0.5, "noise": "simulation"}
    config = {"data": data, "algorithm": {"name": "fedavg"}, "run": {"rounds": 1}, "privacy": budget}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ct.errors.CoterieWarning)  # with eight clients noise drowns the signal
        result = Config.parse(config).fit(out=tmp_path)
    assert result.receipt is not None
