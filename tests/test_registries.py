"""Every registry is complete: what a room offers of a kind is in the room's dictionary, and nothing else is.

A configuration file and the command line can name only what a registry holds, so a class that is missing there cannot be
used by name, and the conformance suite does not see it.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any, get_args, get_type_hints

import pytest

import coterie as ct
from coterie import aggregation, algorithms, datasets, engines, learning, training
from coterie.aggregation.radius import RADIUS_RULES
from coterie.algorithms import families
from coterie.cli.build import REGISTRIES
from coterie.data.federation import Federation
from coterie.datasets import DATASETS
from coterie.exchange import channels
from coterie.exchange.channels.attacks import ATTACKS, Attack
from coterie.learning import metrics, models, predictors
from coterie.learning.local_sgd import LOCAL_STEPS
from coterie.learning.local_steps import LocalSteps
from coterie.training.cohorts import SAMPLERS, Sampler

Kind = Callable[[Any], bool]


def modules(room: ModuleType) -> Iterator[ModuleType]:
    """A room and every file in it."""
    yield room
    for found in pkgutil.walk_packages(getattr(room, "__path__", []), room.__name__ + "."):
        yield importlib.import_module(found.name)


def offered(room: ModuleType, kind: Kind) -> dict[str, Any]:
    """The public classes and functions of a kind that are defined in a room."""
    return {
        name: thing
        for module in modules(room)
        for name, thing in vars(module).items()
        if isinstance(thing, type | FunctionType)
        and thing.__module__ == module.__name__
        and not name.startswith("_")
        and kind(thing)
    }


def below(base: type) -> Kind:
    """Classes that inherit from another."""
    return lambda thing: isinstance(thing, type) and base in thing.__mro__[1:]


def is_an_algorithm(thing: Any) -> bool:
    """Algorithms, and not what families of them inherit."""
    return below(ct.exchange.Algorithm)(thing) and thing.__module__ != families.__name__


def acts_like(model: type) -> Kind:
    """Classes with all public methods of a protocol (or of one of the classes), taking arguments of the same names."""
    wanted = _methods(model)
    return lambda thing: (
        isinstance(thing, type)
        and not getattr(thing, "_is_protocol", False)
        and wanted.items() <= _methods(thing).items()
    )


def _methods(kind: type) -> dict[str, tuple[str, ...]]:
    return {
        name: tuple(inspect.signature(method).parameters)
        for base in reversed(kind.__mro__)
        for name, method in vars(base).items()
        if isinstance(method, FunctionType) and (name == "__call__" or not name.startswith("_"))
    }


def takes(*names: str) -> Kind:
    """Functions of arguments with exactly these names."""
    return lambda thing: isinstance(thing, FunctionType) and tuple(inspect.signature(thing).parameters) == names


def makes_factory(thing: Any) -> bool:
    return isinstance(thing, FunctionType) and thing.__annotations__.get("return") == "Factory"


def loads_data(thing: Any) -> bool:
    """Functions that return clients' data and take none."""
    if not isinstance(thing, FunctionType) or thing.__name__ not in datasets.__all__:
        return False
    hints = get_type_hints(thing)
    answer = hints.pop("return")
    parts = (answer, *get_args(answer))
    return Federation in parts or (isinstance(answer, type) and issubclass(answer, tuple) and "Partition" not in parts)


@dataclass(frozen=True)
class Registry:
    """`public` is where users find the entries under their own names."""

    entries: Mapping[str, Any]
    room: ModuleType
    kind: Kind
    public: ModuleType


CASES = {
    "ALGORITHMS": Registry(algorithms.ALGORITHMS, algorithms, is_an_algorithm, ct),
    "AGGREGATORS": Registry(aggregation.AGGREGATORS, aggregation, acts_like(aggregation.Aggregator), ct.robust),
    "RADIUS_RULES": Registry(RADIUS_RULES, aggregation, acts_like(ct.robust.Percentile), ct.robust),
    "SAMPLERS": Registry(SAMPLERS, training, acts_like(Sampler), ct.training),
    "ATTACKS": Registry(ATTACKS, channels, below(Attack), ct.exchange.attacks),
    "LOSSES": Registry(metrics.LOSSES, learning, takes("outputs", "y"), ct.metrics),
    "METRICS": Registry(metrics.METRICS, learning, takes("outputs", "y", "mask"), ct.metrics),
    "ENGINES": Registry(engines.ENGINES, engines, acts_like(engines.Engine), ct.engines),
    "MODELS": Registry(models.MODELS, learning, makes_factory, ct.models),
    "LOCAL_STEPS": Registry(LOCAL_STEPS, learning, below(LocalSteps), ct),
    "PREDICTORS": Registry(predictors.PREDICTORS, learning, acts_like(predictors.Predictor), predictors),
}


@pytest.mark.parametrize("name", CASES)
def test_a_registry_holds_all_its_room_offers_and_nothing_else(name: str) -> None:
    case = CASES[name]
    here, there = set(case.entries.values()), set(offered(case.room, case.kind).values())
    assert here, f"{name} is empty"
    assert not there - here, f"{name} misses {there - here}"
    assert not here - there, f"{name} holds what its room does not offer: {here - there}"
    assert len(here) == len(case.entries), f"{name} names something twice"


@pytest.mark.parametrize("name", CASES)
def test_everything_in_a_registry_is_public(name: str) -> None:
    case = CASES[name]
    hidden = [key for key, thing in case.entries.items() if getattr(case.public, thing.__name__, None) is not thing]
    assert not hidden, f"{name} holds {hidden}, which {case.public.__name__} does not offer"


def test_every_channel_but_the_bases_of_channels_is_registered() -> None:
    kinds = set(offered(channels, below(channels.Channel)).values())
    bases = {kind for kind in kinds if any(below(kind)(other) for other in kinds)}
    assert bases == {Attack}
    assert set(channels.CHANNELS.values()) == kinds - bases
    assert ATTACKS.items() <= channels.CHANNELS.items()


def test_every_data_set_is_in_the_catalogue_and_has_its_loader() -> None:
    """A loader of several data sets, such as `user_tokens`, begins their names."""
    loaders = offered(datasets, loads_data)
    of = {name: [loader for loader in loaders if name == loader or name.startswith(loader + "_")] for name in DATASETS}
    assert all(len(found) == 1 for found in of.values()), of
    assert {found[0] for found in of.values()} == set(loaders)


def test_the_rooms_public_names_are_those_of_the_registry() -> None:
    for room, case in ((algorithms, CASES["ALGORITHMS"]), (aggregation, CASES["AGGREGATORS"])):
        assert {kind.__name__ for kind in case.entries.values()} <= set(room.__all__)


def test_a_configuration_reads_these_registries() -> None:
    known = [*(case.entries for case in CASES.values()), channels.CHANNELS]
    assert all(any(entries is one for one in known) for entries in REGISTRIES.values())
