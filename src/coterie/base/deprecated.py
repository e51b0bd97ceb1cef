"""Old spellings that still work: names that left the top level, settings with another name, settings given by position.

An old spelling works for one more release and warns with the new one (docs/versions.md). Everything old is in the tables of
this file: the release after that empties them. `@renamed` lets an estimator take its old settings; `guarded` does so for
functions and algorithms.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from functools import wraps
from operator import attrgetter
from types import ModuleType
from typing import Any, TypeVar, cast

from coterie.errors import ConfigError, OldSpelling

Thing = TypeVar("Thing", bound=Callable[..., Any])

_MOVED = {
    "comparison": "Decision decide",
    "engines": "LocalEngine LoopEngine RayEngine",
    "errors": "ClientError ConfigError CoterieError CoterieWarning DataError Diverged EngineError TaskError",
    "estimation": "Advice MixtureModels Quantiser",
    "exchange": "Algorithm Ask Cohort Context Dropout From MeanBy Reply SumBy Up attacks channels tree",
    "histograms": "DirichletMultinomialMixture FedAvgHistogram IFCAHistograms LocalHistograms TokenReduction save_counts",
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
    "MixtureModels": _DRAWN,
    "MixturePrior": _NOISE,
    "ThresholdClustering": {"n_clusters": "clusters"},
    "Truth": _NOISE,
    "blobs": _NOISE,
    "linear_model": _NOISE,
}
"""Class or function → its former settings and their names today."""

GONE: dict[str, tuple[str, dict[str, Any]]] = {
    "AdaPeD": ("printed/adaped.py", {"mode": "corrected", "clips": (1.0, 1.0), "noises": (0.0, 0.0)}),
    "BernoulliRates": ("printed/rates.py", {"variance": "corrected", "minus_one": True}),
    "DiscretePrior": ("printed/discrete_prior.py", {"repair": "em"}),
    "MixtureMeans": ("printed/mixtures.py", {"method": "em"}),
    "clipping_radius": ("private_means.py", {"printed": False}),
}
"""Class or function → the place in `reproductions/` of a paper's variant that fails, and the settings that chose it, each
with the value that changes nothing."""

SQUARED = ("Truth", "blobs", "linear_model")  # their `noise` was a standard deviation

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
    """The object that a former name at the top level stands for."""
    _warn(f"ct.{name} is now ct.{NAMES[name]}", 4)
    return attrgetter(NAMES[name])(package)


def today(owner: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a class or function under their present names, with a warning where a former name was used. Settings that
    only the class itself can rewrite keep their former names."""
    given = _without_gone(owner, given)
    former = {old: now for old, now in SETTINGS.get(owner, {}).items() if old in given and now.isidentifier()}
    if former:
        _warn(f"In {owner}, " + " and ".join(f"{old} is now {now}" for old, now in former.items()), 4)
    squared = owner in SQUARED
    return {k: v for k, v in given.items() if k not in former} | {
        now: given[old] ** 2 if squared and isinstance(given[old], int | float) else given[old]
        for old, now in former.items()
    }


def no_longer_here(owner: str, name: str, value: Any, home: str) -> ConfigError:
    """One sentence that says where a paper's failing variant is now."""
    return ConfigError(
        f"{owner} has no {name}={value!r} any more: the paper's variant, which fails, is in reproductions/{home} of "
        f"the repository. Leave {name} out."
    )


def _without_gone(owner: str, given: Mapping[str, Any]) -> dict[str, Any]:
    home, usual = GONE.get(owner, ("", {}))
    for name in usual.keys() & given.keys():
        if given[name] != usual[name]:
            raise no_longer_here(owner, name, given[name], home)
        _warn(f"{owner} has no {name} any more: leave it out", 5)
    return {name: value for name, value in given.items() if name not in usual}


def renamed(thing: Thing) -> Thing:
    """Let a class or a function take the former names of its settings, if it is in the tables."""
    name, made = thing.__name__, cast(Any, thing)
    if not thing.__module__.startswith("coterie.") or name not in SETTINGS.keys() | POSITIONS.keys() | GONE.keys():
        return thing
    if not isinstance(thing, type):
        return cast(Thing, _respelled(made, name))

    def old_attribute(self: Any, old: str) -> Any:
        if not SETTINGS[name].get(old, "").isidentifier():
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {old!r}")
        (now,) = today(name, {old: None})
        return getattr(self, now) ** 0.5 if name in SQUARED else getattr(self, now)

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
        given = today(name, given)
        old = [key for key in SETTINGS.get(name, {}) if key in given]
        if old:
            _warn(f"In {name}, " + " and ".join(f"{key} is now {SETTINGS[name][key]}" for key in old), 3)
        for key in old:
            kind.former(given, key, given.pop(key))
        return function(*args, **given)

    return call


def _are_steps(value: Any) -> bool:
    """Whether a value is a `LocalSteps`, which lives in a room above this file."""
    return any(kind.__name__ == "LocalSteps" for kind in type(value).__mro__)


def _fits_first(order: tuple[str, ...], value: Any) -> bool:
    """Whether a single value given by position is `local`, the only setting that may be given so."""
    return order[0] == "local" or _are_steps(value)


def _by_name(name: str, order: tuple[str, ...], values: tuple[Any, ...]) -> dict[str, Any]:
    if name == "IFCA" and len(values) > 1 and _are_steps(values[1]):
        order = ("clusters", "local")
    if len(values) > len(order):
        raise ConfigError(f"{name} has {len(order)} settings; got {len(values)} by position. Give them by name.")
    told = dict(zip(order, values, strict=False))
    _warn(f"{name} takes {', '.join(f'{key}=…' for key in told)} by name", 4)
    return told


def _warn(sentence: str, level: int) -> None:
    warnings.warn(f"{sentence}; the old spelling works for one more release.", OldSpelling, stacklevel=level)
