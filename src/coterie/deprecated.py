"""Old spellings that still work: names that left the top level, settings with another name, settings given by position.

An old spelling works for one more release and warns with the new one (docs/versions.md). Everything old is in the tables of
this file: the release after that empties them. `@renamed` lets an estimator take its old settings; `guarded` does so for
functions and algorithms.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from functools import wraps
from operator import attrgetter
from types import ModuleType
from typing import Any, TypeVar, cast

from coterie.arguments import is_number, made_by
from coterie.errors import OldSpelling

Thing = TypeVar("Thing", bound=Callable[..., Any])
_STEPS = made_by("LocalSteps")

_MOVED = {
    "engines": "LocalEngine LoopEngine RayEngine",
    "errors": "ClientError ConfigError CoterieError CoterieWarning DataError Diverged EngineError TaskError",
    "estimation": "Advice Quantiser",
    "exchange": "Algorithm Ask Cohort Context Dropout From MeanBy Reply SumBy Up attacks channels",
    "histograms": "DirichletMultinomialMixture FedAvgHistogram IFCAHistograms LocalHistograms TokenReduction save_counts",
    "metrics": "Scorer",
    "robust": "Fixed Percentile Proof Theory ThresholdClustering threshold_clustering",
    "training": "Choice Coalition Evaluation Everyone FixedSize Grid Participation Poisson Run Seeds TensorBoard",
}
NAMES = {name: f"{room}.{name}" for room, names in _MOVED.items() for name in names.split()}
"""Former name at the top level → where it is now, both as `ct.…`."""

_DRAWN = {"seed": "random_state"}
_RESTARTED = {**_DRAWN, "restarts": "n_init"}
_NOISE = {"noise": "noise_variance"}
SETTINGS: dict[str, dict[str, str]] = {
    "BernoulliRates": _DRAWN,
    "DirichletMultinomialMixture": _RESTARTED,
    "DiscretePrior": {"models": "clusters", **_NOISE},
    "FedAvgHistogram": _DRAWN,
    "FedEM": {"components": "clusters"},
    "FederatedClustering": {"groups": "subsets"},
    "GaussianMeans": _DRAWN,
    "GaussianPrior": _NOISE,
    "HistogramMixture": _RESTARTED,
    "IFCA": {  # IFCA.former puts their values into the new ones
        "stop_after": "stop=EarlyStop(…)",
        "reopen_every": "stop=EarlyStop(…, reopen_every=…)",
        "probe_steps": "start=FromUpdates(probe_steps=…)",
    },
    "IFCAHistograms": _DRAWN,
    "LaplacePrior": _NOISE,
    "MixtureMeans": _RESTARTED,
    "MixtureModels": {**_DRAWN, "rounds": "max_iter"},
    "MixturePrior": _NOISE,
    "ThresholdClustering": {"n_clusters": "clusters", "rounds": "max_iter"},
    "blobs": _NOISE,
    "linear_model": _NOISE,
}
"""Class or function → its former settings and their names today."""

SQUARED = ("blobs", "linear_model")  # their `noise` was a standard deviation

_LOCAL = "local aggregate"
POSITIONS: dict[str, tuple[str, ...]] = {
    name: tuple(order.split())
    for name, order in {
        "APFL": f"alpha adapt {_LOCAL}",
        "AdaPeD": "psi psi_floor local shared_lr psi_lr catch_up mode clips noises",
        "CFL": "local quiet loud first linkage most aggregate relative",
        "DefectionFree": "scheme quality measure holdout q_max reference_steps pace high_steps low_steps halvings tolerance "
        "low_mode pretrain local",
        "DiscretePrior": "clusters repair noise_variance local",
        "Ditto": f"lam {_LOCAL}",
        "FedAvg": "local server_lr server_momentum aggregate",
        "FedBN": "local keep",
        "FedEM": "clusters e_steps local",
        "FedProx": "local server_lr server_momentum aggregate mu",
        "FedRep": "head local head_local",
        "FederatedClustering": "lr radius subsets batch_size inner local_steps momentum",
        "FineTuned": "base tune",
        "GaussianPrior": "scale learn per floor noise_variance probes local",
        "HypCluster": f"clusters {_LOCAL}",
        "IFCA": "clusters option local start normalise samples_weighted shared stop_after reopen_every resample probe_steps "
        "aggregate",
        "KNNPer": f"lam neighbours {_LOCAL}",
        "LaplacePrior": "scale learn per floor noise_variance probes local",
        "MixturePrior": "clusters scale floor noise_variance local",
        "MomentumClustering": "clusters lr alpha radius batch_size inner warm",
        "MutualLearning": f"alpha beta {_LOCAL}",
        "MyopicClustering": "clusters lr batch_size aggregate",
        "OneShot": "clusters local solve on",
        "PFedMe": "lam inner lr beta local",
        "PerFedAvg": f"alpha order adapt {_LOCAL}",
        "QuPeD": f"lam bits pull {_LOCAL}",
        "Scaffold": "local server_lr option",
    }.items()
}
"""Algorithm → the order of its settings when all of them could be given by position."""


def moved(package: ModuleType, name: str) -> Any:
    """What a former name at the top level stands for."""
    _warn(f"ct.{name} is now ct.{NAMES[name]}", 4)
    return attrgetter(NAMES[name])(package)


def setting_of_today(owner: str, name: str) -> str:
    """The name of a setting today, with a warning where it is another one."""
    now = SETTINGS.get(owner, {}).get(name, name)
    if now.isidentifier() and now != name:
        _warn(f"In {owner}, {name} is now {now}", 4)
        return now
    return name


def renamed(thing: Thing) -> Thing:
    """Let a class or a function take its settings as they were spelled, if it is in the tables."""
    name, made = thing.__name__, cast(Any, thing)
    if not thing.__module__.startswith("coterie.") or name not in SETTINGS.keys() | POSITIONS.keys():
        return thing
    if not isinstance(thing, type):
        return cast(Thing, _respelled(made, name))

    def old_attribute(self: Any, old: str) -> Any:
        now = setting_of_today(name, old)
        if now == old:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {old!r}")
        return getattr(self, now)

    made.__init__ = _respelled(made.__init__, name, made)
    if name in SETTINGS:
        made.__getattr__ = old_attribute
    if hasattr(made, "set_params"):  # scikit-learn's
        made.set_params = _respelled(made.set_params, name)
    return thing


def _respelled(function: Callable[..., Any], name: str, kind: Any = None) -> Callable[..., Any]:
    """The same function, which also takes the spellings of the last release; `kind` is the class that it makes."""
    order = POSITIONS.get(name, ())
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    most = sum(p.kind in by_position for p in inspect.signature(function).parameters.values()) - 1  # not self

    @wraps(function)
    def call(*args: Any, **given: Any) -> Any:
        if order and kind and (len(args) - 1 > most or (len(args) > 1 and not _fits_first(order, args[1]))):
            args, given = args[:1], _by_name(name, order, args[1:]) | given
        old = {key: now for key, now in SETTINGS.get(name, {}).items() if key in given}
        if old:
            _warn(f"In {name}, " + " and ".join(f"{key} is now {now}" for key, now in old.items()), 3)
        for key, now in old.items():
            value = given.pop(key)
            if not now.isidentifier():
                kind.former(given, key, value)
            else:
                given[now] = value**2 if name in SQUARED and is_number(value) else value
        return function(*args, **given)

    return call


def _fits_first(order: tuple[str, ...], value: Any) -> bool:
    """`local` alone is given by position today."""
    return order[0] == "local" or _STEPS.holds(value)


def _by_name(name: str, order: tuple[str, ...], values: tuple[Any, ...]) -> dict[str, Any]:
    if name == "IFCA" and len(values) > 1 and _STEPS.holds(values[1]):
        order = ("clusters", "local")
    if len(values) > len(order):
        raise TypeError(f"{name} takes at most {len(order)} settings by position; got {len(values)}")
    told = dict(zip(order, values, strict=False))
    _warn(f"{name} takes {', '.join(f'{key}=…' for key in told)} by name", 4)
    return told


def _warn(sentence: str, level: int) -> None:
    warnings.warn(f"{sentence}; the old spelling works for one more release.", OldSpelling, stacklevel=level)
