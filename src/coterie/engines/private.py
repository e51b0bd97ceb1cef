"""Where private training adds noise: clipped, noisy sums replace plain sums in every additive ask of every algorithm.

Each client's declared updates are one joint vector: the sent values minus the values from which the ask measures them. It is
clipped in L2 norm, every client counts once, and all are added up. Noise is added once per ask, after it was booked. The
answer looks like any other: for one group the sum is divided by the public expected number of clients; for several, counts
are released in the same vector, and a group whose noisy count is below four standard deviations is taken as empty.

A client that sends NaN or infinity contributes nothing, and this is not reported. `noise="exact"` rounds each client to a
lattice of integers; `"simulation"` adds in float64 and rounds the sum, which is as fast as a plain sum but protects nobody.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.base.tree import flatten, leaves, unflatten
from coterie.engines.base import Env
from coterie.engines.reduce import group_sums
from coterie.errors import ConfigError
from coterie.exchange.channels.updates import expected_shapes, public_references
from coterie.exchange.messages import Ask, MeanBy, Reply
from coterie.privacy.account import Account
from coterie.privacy.mechanisms.gaussian import DRAWN_BY_THE_RUN
from coterie.privacy.mechanisms.noise import ExactNoise, Noise, SimulationNoise
from coterie.privacy.mechanisms.sums import GroupSums, JointSum
from coterie.privacy.settings import Privacy
from coterie.privacy.taint import Booking, Released
from coterie.secure.settings import Secure

RELEASE = "rounds"  # the name of all releases of a run in its ledger
_ADDITIVE = "FedAvg, FineTuned, IFCA, HypCluster, Ditto, KNNPer or Oracle"
Shapes = dict[str, torch.Size]


def noisy_sites(privacy: Privacy, secure: Secure | None) -> int:
    """Of how many honest sites the noise of a sum is guaranteed; 0 where the server adds it."""
    return secure.honest if secure is not None and secure.noise == "sites" and not privacy.simulated else 0


def check_private(ask: Ask) -> None:
    """Refuse, with the reason, an ask that shows more than sums of clipped updates."""
    if ask.reduce is None:
        raise ConfigError(
            f"Privacy needs sums, and the ask '{ask.name}' shows the server every client's reply. Use an algorithm whose "
            f"asks are additive, such as {_ADDITIVE}, or train without privacy."
        )
    if ask.reduce.soft:
        raise ConfigError(
            f"Privacy needs sums in which a client counts once, and in '{ask.name}' it counts in several groups. Use "
            f"{_ADDITIVE}, or train without privacy."
        )
    if ask.auxiliary:
        raise ConfigError(
            f"Privacy clips updates, and the ask '{ask.name}' also sends {ask.auxiliary[0]!r}, which is not an update. Use "
            f"an algorithm that  sends updates only, such as {_ADDITIVE}, or declare the field in updates."
        )


@dataclass
class Releases:
    """Clips, adds up, books and releases. `expected` is the public number of clients per round."""

    privacy: Privacy
    account: Account
    noise_multiplier: float
    n_users: int
    sampling: float
    expected: float
    secure: Secure | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Pickled for the processes where clients are: the account stays with the server."""
        return vars(self) | {"account": None}

    @property
    def exact(self) -> bool:
        """Whether the releases may get a receipt; those of a simulation may not."""
        return not self.privacy.simulated or self.secure is not None

    @property
    def parts(self) -> int:
        """Of how many honest sites the noise of a sum is guaranteed; 0 where the server adds it."""
        return noisy_sites(self.privacy, self.secure)

    @property
    def count_weight(self) -> float:
        """The weight of a count next to a clipped update: the clip for "replace", where this costs nothing; otherwise half
        of it, which raises the noise of the sums by an eighth."""
        return self.privacy.clip * (1.0 if self.privacy.adjacency == "replace" else 0.5)

    def mechanism(self, groups: int, dimension: int) -> JointSum | GroupSums:
        p = self.privacy
        options: dict[str, Any] = {"adjacency": p.adjacency, "sampling": self.sampling, "parts": max(self.parts, 1)}
        made: JointSum | GroupSums
        if groups == 1:
            made = JointSum(RELEASE, dimension, p.clip, self.noise_multiplier, **options)
        else:
            made = GroupSums(RELEASE, groups, dimension, p.clip, self.noise_multiplier, self.count_weight, **options)
        made.require_room(self.n_users)  # no sum of any clients wraps around
        return made

    # ---- a chunk of clients ------------------------------------------------------------------------------------------

    def partial(self, ask: Ask, env: Env, rows: dict[str, Any]) -> dict[str, Any]:
        """The share of a chunk of clients (their `send` and `group`, stacked) in a sum; shares add up entry by entry."""
        ask.check_declared(rows["send"], "Privacy")
        assert ask.reduce is not None
        sent = flatten({k: v for k, v in rows["send"].items() if k in ask.updates})
        if not sent:
            return {"sums": {}, "weights": torch.zeros(1), "counts": torch.zeros(1, dtype=torch.int64)}
        whole = [path for path, t in sent.items() if not t.is_floating_point()]
        if whole:
            raise ConfigError(
                f"Privacy clips floating-point updates; '{ask.name}' sends whole numbers in {whole[0]!r}. Convert them."
            )
        for path in (p for p in sent if p.split("/", 1)[-1] in env.task.statistics):
            raise ConfigError(
                f"Privacy adds noise, and a noisy variance may be negative; '{ask.name}' sends the statistic {path!r}. "
                "Keep it on the clients with FedBN, or use nn.GroupNorm."
            )
        shapes = {path: t.shape[1:] for path, t in sent.items()}
        moved, group = self._moved(sent, public_references(shapes, ask), rows["group"]), rows["group"]
        add = self._integers if self.exact else self._added
        return add(moved, group, ask.reduce.groups) | {"shapes": shapes}

    def _moved(self, sent: dict[str, Tensor], origin: dict[str, Tensor | None], group: Tensor) -> dict[str, Tensor]:
        """How far every client moved each tensor, (clients, numbers)."""
        moved = {}
        for path, t in sent.items():
            start = origin[path]
            if start is not None:
                t = t - (start if len(start) == 1 else start[group])
            moved[path] = t.reshape(len(t), math.prod(t.shape[1:]))  # also of no clients
        return moved

    def _added(self, moved: dict[str, Tensor], group: Tensor, groups: int) -> dict[str, Any]:
        """Clipped sums in float64."""
        norm = torch.stack([torch.linalg.vector_norm(t, dim=1, dtype=torch.float64) for t in moved.values()]).norm(
            dim=0
        )
        shorten = self.privacy.beyond == "shorten"
        good = torch.isfinite(norm) if shorten else norm <= self.privacy.clip
        factor = (self.privacy.clip / norm.clamp(min=self.privacy.clip)).where(good, 0.0)
        if not bool(good.all()):
            if shorten:
                factor, good = self._repair(moved, factor, good)
            moved = {path: torch.where(good.unsqueeze(1), t, 0) for path, t in moved.items()}
        added = group_sums(moved, factor, group, groups)
        return {
            "sums": added["sums"],
            "weights": torch.zeros(1),
            "counts": torch.bincount(group[good], minlength=groups),
        }

    def _repair(self, moved: dict[str, Tensor], factor: Tensor, good: Tensor) -> tuple[Tensor, Tensor]:
        """Clip also finite rows so long that the square of their length overflowed."""
        rows = (~good).nonzero().squeeze(-1)
        joint = torch.cat([t[rows].double() for t in moved.values()], 1)
        largest = joint.abs().amax(1)
        finite = torch.isfinite(largest)
        unit = (joint / largest.unsqueeze(1)).norm(dim=1)
        factor, good = factor.clone(), good.clone()
        factor[rows] = (self.privacy.clip / largest / unit).where(finite, 0.0)
        good[rows] = finite
        return factor, good

    def _integers(self, moved: dict[str, Tensor], group: Tensor, groups: int) -> dict[str, Any]:
        """Each client on the lattice, added up exactly."""
        joint = torch.cat([t.double() for t in moved.values()], 1).numpy()
        if self.privacy.beyond == "drop":
            with np.errstate(over="ignore", invalid="ignore"):
                joint[~(np.linalg.norm(joint, axis=1) <= self.privacy.clip)] = np.nan
        mechanism = self.mechanism(groups, joint.shape[1])
        labels = (group.numpy(),) if isinstance(mechanism, GroupSums) else ()
        total = mechanism.partial(joint, *labels)
        return {"sums": {"": torch.from_numpy(total)}, "weights": torch.zeros(1), "counts": torch.zeros(1)}

    # ---- all of them -------------------------------------------------------------------------------------------------

    def reply(self, ask: Ask, env: Env, added: dict[str, Any] | None, about: dict[str, Any]) -> Reply:
        """The noisy answer from the sum of all shares (None: no client was asked)."""
        assert ask.reduce is not None
        everyone = np.arange(self.n_users)  # who took part stays secret
        about = about | {"dropped": everyone[:0]}
        groups = ask.reduce.groups
        if not ask.updates:
            share = torch.full((groups,), self.expected / groups, dtype=torch.float64)
            return Reply(everyone, {}, share, share.round().long(), **about)
        shapes = self._shapes(ask, env, None if added is None else added.get("shapes"))
        mechanism, louder = self._of(ask, shapes), 1.0
        total = self._total(mechanism, added)
        mechanism = self._of(ask, shapes)
        total = self._total(mechanism, added)
        if self.parts:  # of the sites' noise, which was booked before the sum was opened
            booking = Booking(mechanism.event(), self.account.ledger.id, (added or {})["booked"])
            released = Released(mechanism.drawn(total), (booking,))
            louder = math.sqrt((added or {})["sites"] / self.parts)  # all sites were noisy, not the honest ones alone
        else:
            released = mechanism.give_out(total, self._noise(env), self.account.book, drawn=DRAWN_BY_THE_RUN)
        self.account.keep(released.map(lambda _: None))
        count, sums = self._parts(mechanism, released.value, louder)
        return self._answer(ask, env, shapes, count, sums, everyone, about)

    def _of(self, ask: Ask, shapes: Shapes) -> JointSum | GroupSums:
        assert ask.reduce is not None
        return self.mechanism(ask.reduce.groups, sum(s.numel() for s in shapes.values()))

    def part(self, ask: Ask, shapes: Shapes, total: Any) -> Any:
        """A site's sum with its part of the noise, if sites add it."""
        return self._of(ask, shapes).part(total, ExactNoise()) if self.parts and ask.updates else total

    def book_ahead(self, ask: Ask, shapes: Shapes) -> int | None:
        """Book a release whose noise sites have drawn, before it can be seen; the number of the booking."""
        return self.account.book(self._of(ask, shapes).event()).number if self.parts and ask.updates else None

    def _shapes(self, ask: Ask, env: Env, sent: Shapes | None) -> Shapes:
        """The shapes of a release. They must not show whether any client was drawn, so they are the same without clients."""
        expected = expected_shapes(ask, flatten(env.initial))
        if sent is not None and self.expected < self.n_users and sent != expected:
            odd = next(path for path in (*sent, *expected) if sent.get(path) != expected.get(path))
            raise ConfigError(
                f"A private round must look the same when nobody is drawn, and '{ask.name}' does not say what shape {odd!r} "
                f"then has. Put a tree of that shape into the ask: known={{{odd.partition('/')[0]!r}: …}}."
            )
        return expected if sent is None else sent

    def _total(self, mechanism: JointSum | GroupSums, added: dict[str, Any] | None) -> Any:
        """The sum of all clients as integers on the lattice."""
        shape: tuple[int, ...] = (mechanism.dimension,)
        if isinstance(mechanism, GroupSums):
            shape = (mechanism.n_groups, 1 + mechanism.dimension)
        if added is None:
            return np.zeros(shape, np.int64)
        if self.exact:
            return added["sums"][""].numpy()
        sums = torch.cat([t.flatten(1) for t in added["sums"].values()], 1).numpy()
        whole = np.rint(sums / mechanism.lattice.step).astype(np.int64)
        if isinstance(mechanism, GroupSums):
            counts = added["counts"].numpy().astype(np.int64) * mechanism.weight
            return np.concatenate([counts[:, None], whole], axis=1)
        return whole[0]

    def _noise(self, env: Env) -> Noise:
        if not self.privacy.simulated:
            return ExactNoise()
        return SimulationNoise(np.random.default_rng([abs(env.seed), env.round, env.ask, 0x5EED]))

    def _parts(self, mechanism: JointSum | GroupSums, value: Any, louder: float = 1.0) -> tuple[Tensor, Tensor]:
        """(numbers of clients by group, 0 for one taken as empty; noisy sums by group)."""
        if isinstance(mechanism, JointSum):
            return torch.tensor([self.expected], dtype=torch.float64), torch.from_numpy(value).unsqueeze(0)
        counts, sums = (torch.from_numpy(part) for part in value)
        deviation = louder * mechanism.sigma / (mechanism.weight * mechanism.lattice.step)
        return counts.where(counts >= 4 * deviation, 0.0), sums

    def _answer(
        self, ask: Ask, env: Env, shapes: Shapes, count: Tensor, sums: Tensor, everyone: Any, about: dict[str, Any]
    ) -> Reply:
        """The noisy sums as means or sums of what clients send: the reference plus the noisy update."""
        dtype = next(leaves(env.initial)).dtype
        safe, seen = torch.where(count > 0, count, 1.0).unsqueeze(1), (count > 0).unsqueeze(1)
        origin = public_references(shapes, ask)
        parts = torch.split(sums, [s.numel() for s in shapes.values()], 1)
        values = {}
        for (path, shape), part in zip(shapes.items(), parts, strict=True):
            start = origin[path]
            base = torch.zeros(1, dtype=torch.float64) if start is None else start.reshape(len(start), -1).double()
            mean = base + torch.where(seen, part / safe, 0.0)
            wanted = mean if isinstance(ask.reduce, MeanBy) else torch.where(seen, mean * safe, 0.0)
            values[path] = wanted.to(dtype).reshape(len(count), *shape)
        return Reply(everyone, unflatten(values), count, count.round().long(), **about)


def simulated(privacy: Privacy) -> Privacy:
    """The same budget without bookings, for runs that are only simulations."""
    return replace(privacy, noise="simulation", ledger=None)
