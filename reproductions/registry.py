"""All experiments by name; a file is imported when its experiment is asked for."""

from __future__ import annotations

from importlib import import_module

from coterie.base.text import suggest
from coterie.errors import ConfigError
from reproductions.experiment import Experiment
from reproductions.names import EXPERIMENTS


def experiment(name: str) -> Experiment:
    """The experiment of this name."""
    if name not in EXPERIMENTS:
        raise ConfigError(f"There is no experiment {name!r}. {suggest(name, EXPERIMENTS)}")
    module, _, attribute = EXPERIMENTS[name].partition(":")
    found: Experiment = getattr(import_module(f"reproductions.{module}"), attribute or "EXPERIMENT")
    return found
