"""Neighbouring worlds for the audit: without and with the user who is hardest to hide, the canary.

The canary is one coordinate, a thousand times as large as the clip. ``mechanism_worlds`` runs the mechanism itself, from
clipping to release. ``event_worlds`` plays a run's booked releases again from their Δ and σ, with the best possible
score, the log-likelihood ratio; it audits the accounting of a whole run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from coterie.base.annotations import guarded
from coterie.errors import ConfigError
from coterie.privacy.auditing import World
from coterie.privacy.events import Event
from coterie.privacy.mechanisms.local import LocalGaussian, OneBit
from coterie.privacy.mechanisms.moments import UnitMoments
from coterie.privacy.mechanisms.noise import Noise, make_noise
from coterie.privacy.mechanisms.power import NoisyPower
from coterie.privacy.mechanisms.quantile import Quantile
from coterie.privacy.mechanisms.sums import GroupSums, JointSum
from coterie.privacy.terms import Mode

_LARGE = 1e3
Mechanism = JointSum | GroupSums | LocalGaussian | OneBit | NoisyPower | Quantile | UnitMoments


@guarded
def mechanism_worlds(mechanism: Mechanism, noise: Mode = "exact") -> tuple[World, World]:
    """The worlds without and with the canary for one of the mechanisms; a replaced canary turns into its negative."""

    def source(rng: np.random.Generator) -> Noise:
        return make_noise(noise, None if noise == "exact" else rng)

    for kind, build in _WORLDS.items():
        if isinstance(mechanism, kind):
            return build(mechanism, False, source), build(mechanism, True, source)
    raise ConfigError(f"no canary is known for {type(mechanism).__name__}; pass a pair of worlds instead.")


def _rows(mechanism: Any, clip: float, inside: bool, *, replaced: bool) -> Any:
    rows = np.zeros((2, mechanism.dimension))
    rows[0, 0] = clip / 2  # another user
    rows[1, 0] = _LARGE * clip * (1 if inside else -1 if replaced else 0)
    return rows


def _joint(mechanism: JointSum, inside: bool, source: Callable[[np.random.Generator], Noise]) -> World:
    rows = _rows(mechanism, mechanism.clip, inside, replaced=mechanism.adjacency == "replace")

    def world(rng: np.random.Generator, trials: int) -> Any:
        many = np.repeat(mechanism.partial(rows)[None], trials, axis=0)
        return mechanism.noisy(many, source(rng))[:, 0]

    return world


def _grouped(mechanism: GroupSums, inside: bool, source: Callable[[np.random.Generator], Noise]) -> World:
    """The score projects the release on the difference of the two worlds, which is the best test for Gaussian noise."""
    here, there = mechanism.partial(*_group_case(mechanism, True)), mechanism.partial(*_group_case(mechanism, False))
    direction = (here - there).astype(np.float64) / mechanism.lattice_sensitivity
    total = here if inside else there

    def world(rng: np.random.Generator, trials: int) -> Any:
        counts, sums = mechanism.noisy(np.repeat(total[None], trials, axis=0), source(rng))
        weighted = counts @ direction[:, 0] * (mechanism.weight * mechanism.lattice.step)
        return weighted + np.einsum("tkd,kd->t", sums, direction[:, 1:])

    return world


def _group_case(mechanism: GroupSums, inside: bool) -> tuple[Any, Any]:
    """Zero-out: the canary is in group 0, or absent. Replace: it moves to the last group or is negated, whichever changes
    more."""
    replaced = mechanism.adjacency == "replace"
    moves = replaced and mechanism.n_groups > 1 and mechanism.lattice_sensitivity > 2 * mechanism.lattice.radius
    rows = _rows(mechanism, mechanism.clip, inside or moves, replaced=replaced)
    away = mechanism.n_groups - 1 if moves else (0 if replaced else -1)
    return rows, np.array([0, 0 if inside else away])


def _local(mechanism: LocalGaussian, inside: bool, source: Callable[[np.random.Generator], Noise]) -> World:
    def world(rng: np.random.Generator, trials: int) -> Any:
        rows = np.zeros((trials, mechanism.dimension))
        rows[:, 0] = _LARGE * mechanism.radius * (1 if inside else -1)
        return mechanism(rows, source(rng)).value[:, 0]

    return world


def _one_bit(mechanism: OneBit, inside: bool, source: Callable[[np.random.Generator], Noise]) -> World:
    return lambda rng, trials: mechanism(np.full(trials, float(inside)), source(rng)).value


def _power(mechanism: NoisyPower, inside: bool, source: Callable[[np.random.Generator], Noise]) -> World:
    """One iteration. The canary lies in a direction of the public start, where the projection keeps all of it; a replaced
    one turns from one direction to another, since x and −x are the same to x·xᵀ."""
    basis = mechanism.first_basis()
    other = 1 if mechanism.n_components > 1 else 0
    outside = basis[:, other] * (mechanism.adjacency == "replace")
    row = _LARGE * mechanism.clip * (basis[:, 0] if inside else outside)
    here, there = (mechanism.partial(x, basis) for x in (basis[:, 0] * _LARGE * mechanism.clip, outside * _LARGE))
    direction = (here - there) / np.linalg.norm(here - there)
    total = mechanism.partial(row, basis)

    def world(rng: np.random.Generator, trials: int) -> Any:
        noisy = mechanism.noisy(np.repeat(total[None], trials, axis=0), source(rng))
        return np.einsum("tdk,dk->t", noisy, direction)

    return world


def _quantile(mechanism: Quantile, inside: bool, source: Callable[[np.random.Generator], Noise]) -> World:
    """One step. The canary is at the lower bound, or absent; a replaced canary is at the upper bound instead."""
    outside = mechanism.high if mechanism.adjacency == "replace" else np.nan
    values = [mechanism.low if inside else outside]
    count = mechanism.count(values, float(np.sqrt(mechanism.low * mechanism.high)))
    return lambda rng, trials: mechanism.noisy(np.full(trials, count), source(rng))


def _moments(mechanism: UnitMoments, inside: bool, source: Callable[[np.random.Generator], Noise]) -> World:
    """A unit of as many rows as it may have, all alike, among a few others. A replaced canary turns by a right angle."""
    replaced = mechanism.adjacency == "replace"

    def total(inside: bool) -> Any:
        rows = np.zeros((2 + mechanism.most, mechanism.columns))
        rows[:2, 0] = 0.5 * mechanism.clip
        if inside or replaced:
            rows[2:, 0 if inside else -1] = _LARGE * mechanism.clip
        return mechanism.partial(rows, np.r_[0, 1, np.full(mechanism.most, 2)], np.zeros(3, np.int64))

    direction = (total(True) - total(False)).astype(np.float64)
    direction /= np.linalg.norm(direction)

    def world(rng: np.random.Generator, trials: int) -> Any:
        noisy = mechanism.noisy_steps(np.repeat(total(inside)[None], trials, axis=0), source(rng))
        return np.einsum("tkd,kd->t", noisy, direction)

    return world


_WORLDS: dict[type, Callable[[Any, bool, Callable[[np.random.Generator], Noise]], World]] = {
    JointSum: _joint,
    GroupSums: _grouped,
    LocalGaussian: _local,
    OneBit: _one_bit,
    NoisyPower: _power,
    Quantile: _quantile,
    UnitMoments: _moments,
}


@guarded
def event_worlds(events: Sequence[Event]) -> tuple[World, World]:
    """A run's releases, played again with simulated noise: shift Δ/σ in every Gaussian one, flips in every one-bit one."""
    events = list(events)

    def build(inside: bool) -> World:
        def world(rng: np.random.Generator, trials: int) -> Any:
            scores = np.zeros(trials)
            for event in events:
                for _ in range(event.count):
                    scores += _ratio(event, inside, rng, trials)
            return scores

        return world

    return build(False), build(True)


def _ratio(event: Event, inside: bool, rng: np.random.Generator, trials: int) -> Any:
    """Log-likelihood ratios of one release."""
    if event.kind == "randomised response":
        flipped = rng.random(trials) < 1 / (np.exp(event.pure_epsilon) + 1)
        return np.where(flipped ^ inside, 1.0, -1.0) * event.pure_epsilon
    mu = event.sensitivity / event.sigma
    taken = rng.random(trials) < event.sampling
    seen = rng.normal(size=trials) + (mu * taken if inside else 0.0)
    if event.sampling == 1:
        return mu * seen - mu * mu / 2
    return np.logaddexp(np.log1p(-event.sampling), np.log(event.sampling) + mu * seen - mu * mu / 2)
