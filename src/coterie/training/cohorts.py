"""The clients that take part in a round: all, a fixed number, or each with a probability."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Protocol, cast

import numpy as np
import pandas as pd
import torch

from coterie.base import randomness
from coterie.base.annotations import guarded
from coterie.base.arguments import shown
from coterie.data.federation import Federation
from coterie.errors import ConfigError
from coterie.exchange.messages import Ints

_MANY = 1 << 14  # above so many clients a small cohort is drawn without a random number per client


class Sampler(Protocol):
    def sample(self, federation: Federation, seed: int, round: int) -> Ints: ...


@dataclass(frozen=True)
class Everyone:
    """All clients, in every round."""

    def sample(self, federation: Federation, seed: int, round: int) -> Ints:
        return np.arange(len(federation))


@guarded
@dataclass(frozen=True)
class FixedSize:
    """`size` clients, uniformly without replacement."""

    size: int

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigError(f"A cohort needs at least one client; got {self.size}.")

    def sample(self, federation: Federation, seed: int, round: int) -> Ints:
        if self.size > len(federation):
            raise ConfigError(f"A cohort of {self.size} needs as many clients; got {len(federation)}. Lower it.")
        if len(federation) > _MANY and 8 * self.size <= len(federation):
            return _few(self.size, len(federation), seed, round)
        return self.by_name(federation, seed, round)

    def by_name(self, federation: Federation, seed: int, round: int) -> Ints:
        """The same clients in any order of the federation, which may depend on one client's rows; draws a number per
        client."""
        order = np.argsort(_draws(federation, seed, round), kind="stable")
        return np.sort(order[: self.size])


@guarded
@dataclass(frozen=True)
class Poisson:
    """Every client independently with probability `rate`."""

    rate: float

    def __post_init__(self) -> None:
        if not 0.0 < self.rate <= 1.0:
            raise ConfigError(f"Poisson sampling needs a rate in (0, 1]; got {self.rate}.")

    def sample(self, federation: Federation, seed: int, round: int) -> Ints:
        return np.flatnonzero(_draws(federation, seed, round) < self.rate)


def checked(drawn: Any, sampler: Sampler, n_clients: int) -> Ints:
    """What a sampler drew, in order: places of the federation, every client at most once."""
    found = np.asarray(drawn)
    if found.ndim == 1 and (not found.size or np.issubdtype(found.dtype, np.integer)):
        clients: Ints = np.sort(found.astype(np.int64))
        inside = not len(clients) or (clients[0] >= 0 and clients[-1] < n_clients)
        if inside and (np.diff(clients) > 0).all():
            return clients
    raise ConfigError(
        f"A sampler must return different places of clients, whole numbers from 0 to {n_clients - 1}; "
        f"{type(sampler).__name__} returned {shown(found.tolist())}. Return np.array([0, 2]), say."
    )


SAMPLERS: dict[str, type] = {"everyone": Everyone, "fixed_size": FixedSize, "poisson": Poisson}


def _draws(federation: Federation, seed: int, round: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """One uniform number per client, from (seed, client, round)."""
    keys = randomness.client_keys(federation.keys, seed)
    draws: np.ndarray[tuple[int], np.dtype[np.float64]]
    draws = randomness.uniform(randomness.fold(keys, "cohort", round), 1, torch.float64).squeeze(-1).numpy()
    return draws


def _few(size: int, n_clients: int, seed: int, round: int) -> Ints:
    """The first `size` different places of a uniform random sequence; the time does not grow with the federation."""
    key, count = randomness.fold(randomness.base_key(seed), "few", round), 2 * size + 64
    while True:
        places = (randomness.uniform(key, count, torch.float64).numpy() * n_clients).astype(np.int64)
        found, first = np.unique(places, return_index=True)
        if len(found) >= size:
            return np.sort(found[np.argsort(first)[:size]])
        count *= 2


def sampler(cohort: Sampler | int | float | None) -> Sampler:
    """None: everyone; a whole number: that many; a fraction: Poisson sampling with that probability."""
    if cohort is None:
        return Everyone()
    if isinstance(cohort, bool) or not isinstance(cohort, Real):
        if callable(getattr(cohort, "sample", None)) and not isinstance(cohort, pd.DataFrame | pd.Series | type):
            found: Any = cohort
            return cast(Sampler, found)
        raise ConfigError(f"cohort must be None, a number of clients, a probability or a sampler; got {shown(cohort)}.")
    return FixedSize(int(cohort)) if isinstance(cohort, Integral) else Poisson(float(cohort))
