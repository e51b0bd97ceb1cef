"""Attacks: clients that lie, in any algorithm, on any engine.

`clients` are the ids of the malicious clients. All attacks except `LabelFlip` and `FalseClaims` forge *updates*. The update
of a model is the client's model minus the model it received; a gradient is already an update. The ask declares which fields
are updates. `FalseClaims` forges groups and losses; other auxiliary fields, and the weight in the average, stay as they are.
Each update is one vector, all its tensors together. What a client keeps for itself stays honest.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.aggregation.radius import RadiusRule, radius_rule
from coterie.base import randomness
from coterie.base.annotations import guarded
from coterie.base.arguments import CountFromZero, NotNegative
from coterie.base.tree import Tree, flat_vector, flatten, unflatten
from coterie.errors import ConfigError, CoterieWarning
from coterie.exchange.channels.base import Channel, Where
from coterie.exchange.channels.updates import references
from coterie.exchange.messages import Ask, Ints

_HARMLESS = 0.1  # lies within so many standard deviations of the honest mean change nothing


@dataclass(frozen=True)
class Attack(Channel):
    """What attacks share: the list of liars, and putting `forge`d updates into messages."""

    clients: Iterable[Hashable]

    def __post_init__(self) -> None:
        if isinstance(self.clients, str | bytes):
            raise ConfigError(f"{type(self).__name__} needs a list of client ids; got {self.clients!r}. Put it in [ ].")
        object.__setattr__(self, "clients", tuple(self.clients))

    def ask(self, ask: Ask, where: Where) -> Ask:
        self.liars(ask.clients, where)  # an unknown id is an error before any work is done
        return ask

    def liars(self, clients: Ints, where: Where) -> npt.NDArray[np.bool_]:
        """Which of `clients` lie."""
        return np.isin(clients, [where.federation.index(c) for c in self.clients])

    def up(self, send: Tree, clients: Ints, ask: Ask, where: Where) -> Tree:
        liars = self.liars(clients, where)
        if not liars.any():
            return send
        bad = torch.from_numpy(np.flatnonzero(liars))
        seen = np.ones_like(liars) if self.whole else liars
        told = Told(clients[seen], liars[seen], where, ask.owner)
        flat, origin = flatten(send), references(send, clients, ask, where, type(self).__name__)
        for name in ask.updates:
            paths = [p for p in flatten(send.get(name, {}), name) if flat[p].is_floating_point()]
            if not paths:
                continue
            updates = flat_vector({p: (flat[p] - origin[p])[torch.from_numpy(seen)] for p in paths}, 1)
            forged = torch.split(self.forge(updates, told), [flat[p][0].numel() for p in paths], 1)
            for path, lie in zip(paths, forged, strict=True):
                start = origin[path][bad]
                flat[path] = flat[path].index_copy(0, bad, (start + lie.reshape(start.shape)).to(flat[path].dtype))
        return unflatten(flat)

    def forge(self, updates: Tensor, told: Told) -> Tensor:
        """Updates (clients, P) → the messages of the liars among them (liars, P)."""
        return updates


@dataclass(frozen=True)
class Told:
    """What an attacker knows in addition to updates: their senders, and the client whose model the ask is about, if any."""

    clients: Ints
    liars: npt.NDArray[np.bool_]
    where: Where
    owner: int | None = None

    def honest(self, updates: Tensor) -> Tensor:
        """The honest clients' updates; the liars' own true updates if no client is honest."""
        return updates if self.liars.all() else updates[torch.from_numpy(~self.liars)]

    def noise(self, count: int, purpose: str, dtype: torch.dtype) -> Tensor:
        """(liars, count) standard normal numbers."""
        return randomness.normal(self.where.client_keys(self.clients[self.liars], purpose), count, dtype)


# ---- each liar alone -------------------------------------------------------------------------------------------------


@guarded
@dataclass(frozen=True)
class LargeGradient(Attack):
    """A-1: `factor` times the update."""

    factor: float = 100.0
    separate = True

    def forge(self, updates: Tensor, told: Told) -> Tensor:
        return self.factor * updates


@guarded
@dataclass(frozen=True)
class SignFlip(Attack):
    """A-2: minus the update, `scale` times."""

    scale: float = 1.0
    separate = True

    def forge(self, updates: Tensor, told: Told) -> Tensor:
        return -self.scale * updates


@guarded
@dataclass(frozen=True)
class GaussianNoise(Attack):
    """N(mean, std²) in every coordinate instead of the update."""

    std: float = 1.0
    mean: float = 0.0
    separate = True

    @classmethod
    def huge(cls, clients: Iterable[Hashable]) -> GaussianNoise:
        """N(0, 200²) + 10⁶, the large attack of the authors' own experiments."""
        return cls(clients, std=200.0, mean=1e6)

    def forge(self, updates: Tensor, told: Told) -> Tensor:
        return self.mean + self.std * told.noise(updates.shape[1], "gaussian noise attack", updates.dtype)


@guarded
@dataclass(frozen=True)
class LabelFlip(Attack):
    """A-3: trains honestly on labels (y + shift) mod the number of classes."""

    shift: int = 1
    separate = True

    def data(self, x: Tensor, y: Tensor, clients: Ints, where: Where) -> tuple[Tensor, Tensor]:
        if where.federation.kind != "classification":
            raise ConfigError("LabelFlip needs classes; this federation holds numbers. Use SignFlip or LargeGradient.")
        liars = torch.from_numpy(self.liars(clients, where)).reshape(-1, *[1] * (y.dim() - 1))
        return x, torch.where(liars, (y + self.shift) % where.federation.n_outputs, y)

    def up(self, send: Tree, clients: Ints, ask: Ask, where: Where) -> Tree:
        return send


@guarded
@dataclass(frozen=True)
class FalseClaims(Attack):
    """Forges what stands beside the update: every liar claims group `cluster`, and where losses are reported a loss of
    −`loss` for that group (or for the first number) and `loss` for all others. Combine it with an attack on updates."""

    cluster: CountFromZero = 0
    loss: NotNegative = 1e3
    separate = True

    def claim(self, group: Tensor, clients: Ints, ask: Ask, where: Where) -> Tensor:
        groups = 1 if ask.reduce is None else ask.reduce.groups
        return self._told(group, torch.full_like(group, min(self.cluster, groups - 1)), clients, where)

    def up(self, send: Tree, clients: Ints, ask: Ask, where: Where) -> Tree:
        forged = dict(send)
        for name in (n for n in ("cluster", "losses") if n in ask.auxiliary and isinstance(send.get(n), Tensor)):
            honest = send[name]
            if name == "cluster":
                lie = torch.full_like(honest, self.cluster)
            else:
                lie = torch.full_like(honest, self.loss)
                lie.reshape(len(lie), -1)[:, min(self.cluster, max(lie[0].numel() - 1, 0))] = -self.loss
            forged[name] = self._told(honest, lie, clients, where)
        return forged

    def _told(self, honest: Tensor, lie: Tensor, clients: Ints, where: Where) -> Tensor:
        liars = torch.from_numpy(self.liars(clients, where)).reshape(-1, *[1] * (honest.dim() - 1))
        return torch.where(liars, lie, honest)


# ---- liars who see everybody's updates -------------------------------------------------------------------------------


@guarded
@dataclass(frozen=True)
class ALIE(Attack):
    """Mean − z · standard deviation of the honest updates, in every coordinate.

    "A Little Is Enough: Circumventing Defenses For Distributed Learning" (Gilad Baruch, Moran Baruch, Yoav Goldberg, 2019,
    https://arxiv.org/abs/1902.06156).

    z=None is the largest that still hides among the honest majority, Φ⁻¹((n − m − s) / (n − m)) with n clients, m liars
    and s = ⌊n/2⌋ + 1 − m. With few liars z is 0 or almost 0: then they send the honest mean, which harms nobody, and a
    warning says so."""

    z: float | None = None
    whole = True

    def ask(self, ask: Ask, where: Where) -> Ask:
        ask = super().ask(ask, where)
        n, m = len(where.federation), len(set(self.clients))
        if m and abs(z := self._z(n, m)) < _HARMLESS:
            warnings.warn(
                f"ALIE is no attack here: with {m} liars among {n} clients z is {z:.2g}, so the liars send about the mean "
                "of the honest updates. Give z, such as 1, or more liars.",
                CoterieWarning,
                stacklevel=2,
            )
        return ask

    def forge(self, updates: Tensor, told: Told) -> Tensor:
        honest, m = told.honest(updates), int(told.liars.sum())
        lie = honest.mean(0) - self._z(len(updates), m) * honest.std(0, correction=0)
        return lie.expand(m, -1)

    def _z(self, n: int, m: int) -> float:
        """The z given, or the largest that hides m liars among n clients."""
        share = min((n - m - (n // 2 + 1 - m)) / max(n - m, 1), 1 - 1e-6)
        return NormalDist().inv_cdf(max(share, 0.5)) if self.z is None else self.z


@guarded
@dataclass(frozen=True)
class InnerProduct(Attack):
    """Inner-product manipulation: −scale · mean of the honest updates.

    "Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product Manipulation" (Cong Xie, Oluwasanmi Koyejo, Indranil
    Gupta, 2020, https://arxiv.org/abs/1903.03936)."""

    scale: float = 0.5
    whole = True

    def forge(self, updates: Tensor, told: Told) -> Tensor:
        return (-self.scale * told.honest(updates).mean(0)).expand(int(told.liars.sum()), -1)


@guarded
@dataclass(frozen=True)
class EdgeAttack(Attack):
    """A-4: a lie just inside the ball of Threshold-Clustering, where it is as large as possible and still counts.

    The ball's centre is the update of `victim`. With None it is the update of the client whose model the ask is about (in
    Federated-Clustering without groups every ask is about one client, whose gradient is the centre's start), else the mean
    of the honest updates. The mean is also used for a victim that was not asked. The radius follows from the same `radius`
    rule, applied to the honest updates. All liars send centre + fraction · τ · u, where u points against the centre's
    direction. A channel acts once per ask, so it attacks the first inner round; the tests simulate the adversary of the
    theorem, who moves along with the centre."""

    radius: RadiusRule | float = 1.0
    victim: Hashable | None = None
    fraction: float = 0.999
    whole = True

    def __post_init__(self) -> None:
        super().__post_init__()
        radius_rule(self.radius)

    def forge(self, updates: Tensor, told: Told) -> Tensor:
        honest = told.honest(updates)
        centre = honest.mean(0)
        victim = told.owner if self.victim is None else told.where.federation.index(self.victim)
        asked = np.flatnonzero(told.clients == victim)
        centre = updates[int(asked[0])] if len(asked) else centre
        rule: RadiusRule = radius_rule(self.radius)
        tau = rule((honest - centre).double().norm(dim=1).unsqueeze(0), 0).to(updates.dtype)
        back = -centre if float(centre.norm()) else told.noise(len(centre), "edge attack", updates.dtype)[0]
        lie: Tensor = centre + self.fraction * tau * back / back.norm()
        return lie.expand(int(told.liars.sum()), -1)


ATTACKS: dict[str, type[Attack]] = {
    "large_gradient": LargeGradient,
    "sign_flip": SignFlip,
    "gaussian_noise": GaussianNoise,
    "label_flip": LabelFlip,
    "alie": ALIE,
    "inner_product": InnerProduct,
    "edge": EdgeAttack,
    "false_claims": FalseClaims,
}
