"""The search for stable groups. Its steps: train all clients together, cut the tree of gradients, judge its nodes from the
bottom up, let the worst clients leave one at a time, let lone clients join, and merge neighbouring groups.

A partition is *rational* when nobody does worse than alone, and *individually stable* when, in addition, nobody gains by
joining another group that would have it (Bogomolnaia and Jackson 2002). Each coalition is trained once, and its losses are
kept."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy import stats

from coterie.evidence.coalitions.client_tree import Node, nearest
from coterie.evidence.gains import FEWEST, Floats, Gains, Ints, clear_losers, gains_of

Block = frozenset[int]
Train = Callable[[Block], Sequence[Floats | None]]
"""A coalition → for every client the losses of its rows under the coalition's model; None for a client without rows."""

SPLIT_Z, FOLD_Z = 1.645, 4.0  # where the tree did not use the rows that judge it, and where it did


@dataclass(frozen=True)
class Settings:
    """level: the level of intervals of single clients. fewest: clients with fewer rows are not judged. worth: the smallest
    gain that counts. z: how many standard errors a split must gain. nodes: the leaves of the cut tree. departures: how many
    clients may leave the group of all, one at a time (None: a quarter of the clients, at least three). budget: the most
    trainings per client. widen: the factor of all errors, by the metric (`evidence.gains.widening`)."""

    level: float = 0.9
    fewest: int = FEWEST
    worth: float = 0.0
    z: float = SPLIT_Z
    nodes: int = 8
    departures: int | None = None
    budget: int = 3
    widen: float = 1.0


class OutOfBudget(Exception):
    """No more coalitions may be trained."""


@dataclass
class Bank:
    """Row losses of every coalition trained so far, all clients' rows one after another. Alone costs no training."""

    train: Train
    alone: Floats
    owner: Ints
    n_clients: int
    limit: int
    rows: dict[Block, Floats] = field(default_factory=dict)
    small: dict[Block, Floats] = field(default_factory=dict)  # models of one client or nobody, scored on all clients

    @property
    def trainings(self) -> int:
        return len(self.rows) + len(self.small)

    def everywhere(self, block: Block) -> Floats:
        """Losses of a coalition's model on the rows of all clients; also of one client, and of nobody."""
        if len(block) > 1:
            return self.losses(block)
        if block not in self.small:
            self.small[block] = self._flat(self.train(block))
        return self.small[block]

    def losses(self, block: Block) -> Floats:
        if len(block) == 1:
            return self.alone
        if block not in self.rows:
            if self.trainings >= self.limit:
                raise OutOfBudget
            self.rows[block] = self._flat(self.train(block))
        return self.rows[block]

    def _flat(self, parts: Sequence[Floats | None]) -> Floats:
        """The losses of all clients in one array, NaN for clients without losses. Rows must be those of alone."""
        sizes = np.bincount(self.owner, minlength=self.n_clients)
        return np.concatenate([np.full(n, np.nan) if p is None else p for p, n in zip(parts, sizes, strict=True)])


@dataclass(frozen=True)
class Search:
    """One search on the rows counted by ``weight``; with ``frozen`` only coalitions trained before are looked at."""

    bank: Bank
    settings: Settings
    tree: Node
    distance: Floats
    weight: Floats | None = None
    frozen: bool = False
    _judged: dict[Block, tuple[Gains, np.ndarray]] = field(default_factory=dict)

    def run(self) -> list[Block]:
        """The partition found; blocks by smallest member."""
        found = self._best(self.tree)
        found = self._better(found, self._from_all())
        found = self._invite(found)
        return sorted(self._merge(found), key=min)

    # ---- what a coalition is worth -----------------------------------------------------------------------------------

    def available(self, block: Block) -> bool:
        """Whether its losses are available: it was trained before, or the budget allows one more training."""
        if len(block) == 1 or block in self.bank.rows:
            return True
        if self.frozen:
            return False
        try:
            self.bank.losses(block)
        except OutOfBudget:
            return False
        return True

    def gains(self, block: Block) -> Gains:
        """The members' gains over alone; other clients have no gain."""
        return self._judge(block)[0]

    def _judge(self, block: Block) -> tuple[Gains, np.ndarray]:
        """The members' gains over alone, and the members that clearly lose; cached, because the steps ask often."""
        if block not in self._judged:
            s, gains = self.settings, self._compare(self.bank.alone, self.bank.losses(block), block)
            self._judged[block] = gains, clear_losers(gains, s.worth, s.level, s.fewest)
        return self._judged[block]

    def _inside(self, block: Iterable[int]) -> np.ndarray:
        """Which rows belong to the block."""
        member = np.zeros(self.bank.n_clients, bool)
        member[list(block)] = True
        return np.asarray(member[self.bank.owner])

    def _compare(self, before: Floats, after: Floats, block: Iterable[int]) -> Gains:
        inside = self._inside(block)
        rows = np.where(inside, before - after, np.nan)
        return gains_of(rows, self.bank.owner, self.bank.n_clients, self.weight).widened(self.settings.widen)

    def losers(self, block: Block) -> np.ndarray:
        return self._judge(block)[1]

    def holds(self, block: Block) -> bool:
        """Whether its mean gain is positive and nobody in it clearly loses. A group of half of the clients or fewer needs a
        mean gain above one standard error and above `worth`."""
        gains = self.gains(block)
        most = 2 * len(block) > self.bank.n_clients
        least = 0.0 if most else max(self.settings.worth, gains.average_error)
        return gains.average > least and not self.losers(block).any()

    def under(self, blocks: list[Block]) -> Floats:
        """Row losses when every client learns with its block, and clients outside of all blocks learn alone."""
        rows = self.bank.alone.copy()
        for block in (b for b in blocks if len(b) > 1):
            inside = self._inside(block)
            rows[inside] = self.bank.losses(block)[inside]
        return rows

    # ---- the steps ---------------------------------------------------------------------------------------------------

    def _best(self, node: Node) -> list[Block]:
        """Judge nodes from the bottom up: a node stays whole if it holds and its parts are not clearly better."""
        block = node.members
        if len(block) == 1:
            return [block]
        if not node.parts:
            return self._depart(block, len(block))[0]
        parts = [b for part in node.parts for b in self._best(part)]
        if not self.available(block) or not self.holds(block):
            return parts
        return parts if self._clearly_better(self.bank.losses(block), self.under(parts), block) else [block]

    def _clearly_better(self, before: Floats, after: Floats, block: Block, looks: int = 1) -> bool:
        """Whether the mean gain exceeds `worth` and ``z`` standard errors (more after several looks, by Bonferroni)."""
        better = self._compare(before, after, block)
        z = max(self.settings.z, float(stats.norm.ppf(1 - 0.05 / looks)))
        return bool(better.average > self.settings.worth and better.average > z * better.average_error)

    def _depart(self, block: Block, most: int) -> tuple[list[Block], bool]:
        """The worst client leaves and the rest is trained again, until the rest holds. Returns (blocks, whether it held)."""
        gone: list[Block] = []
        while len(block) > 1:
            if not self.available(block) or len(gone) > most:
                return [frozenset([i]) for i in sorted(block)] + gone, False
            if self.holds(block):
                return [block, *gone], True
            gains, losers = self.gains(block), self.losers(block)
            member = np.isin(np.arange(self.bank.n_clients), list(block))
            score = np.where((losers if losers.any() else member) & gains.known, gains.mean, np.inf)
            if not np.isfinite(score).any():
                return [block, *gone], False
            worst = int(np.argmin(score))
            block, gone = block - {worst}, [*gone, frozenset([worst])]
        return [block, *gone], True

    def _from_all(self) -> list[Block] | None:
        """The partition after departures from the group of all; None when too many clients would have to leave."""
        m = self.bank.n_clients
        most = self.settings.departures if self.settings.departures is not None else max(3, m // 4)
        blocks, well = self._depart(self.tree.members, most)
        return blocks if well else None

    def _better(self, one: list[Block], other: list[Block] | None) -> list[Block]:
        """The partition with the larger total gain; the first, unless the other is better by more than `worth`."""
        if other is None or set(other) == set(one):
            return one
        change = self._compare(self.under(one), self.under(other), range(self.bank.n_clients))
        return other if change.average > self.settings.worth else one

    def _invite(self, blocks: list[Block]) -> list[Block]:
        """Each lone client tries its two nearest groups, twice. It joins a group if that is clearly better for it and the
        group does not lose more than a standard error."""
        for _ in range(2):
            alone = [b for b in blocks if len(b) == 1]
            level = 1 - 0.1 / max(len(alone), 1)  # Bonferroni, 5 % on the side that counts
            moved = False
            for one in alone:
                groups = [b for b in blocks if len(b) > 1]
                for group in nearest(one, groups, self.distance)[:2]:
                    if self._joins(one, group, level):
                        blocks = [b for b in blocks if b not in (one, group)] + [one | group]
                        moved = True
                        break
            if not moved:
                break
        return blocks

    def _joins(self, one: Block, group: Block, level: float) -> bool:
        both, (i,) = one | group, tuple(one)
        if not self.available(both) or not self.available(group):
            return False
        mine = self.gains(both)
        if mine.rows[i] < self.settings.fewest or not mine.mean[i] > self.settings.worth:
            return False
        needed = float(stats.t.ppf((1 + level) / 2, max(mine.rows[i] - 1, 1))) * mine.error[i]
        change = self._compare(self.bank.losses(group), self.bank.losses(both), group)
        return bool(mine.mean[i] > needed and change.average > -change.average_error and self.holds(both))

    def _merge(self, blocks: list[Block]) -> list[Block]:
        """Greedy merges of blocks that are each other's nearest: groups, or two lone clients."""
        for _ in range(2):
            merged, looks = False, max(len(blocks) // 2, 1)
            for block in sorted(blocks, key=min):
                others = [b for b in blocks if b != block]
                if block not in blocks or not others:
                    continue
                near = nearest(block, others, self.distance)[0]
                back = nearest(near, [b for b in blocks if b != near], self.distance)[0]
                if back != block or (len(block) == 1) != (len(near) == 1) or not self._merges(block, near, looks):
                    continue
                blocks = [b for b in blocks if b not in (block, near)] + [block | near]
                merged = True
            if not merged:
                break
        return blocks

    def _merges(self, one: Block, other: Block, looks: int) -> bool:
        both = one | other
        if both == self.tree.members or not self.available(both) or not self.holds(both):
            return False  # all together was judged before
        return self._clearly_better(self.under([one, other]), self.bank.losses(both), both, looks)

    # ---- who would secede --------------------------------------------------------------------------------------------

    def seceders(self, blocks: list[Block]) -> list[Block]:
        """Trained coalitions that would form a group of their own: every member gains, and their mean clearly does."""
        now, found = self.under(blocks), []
        for block in sorted(self.bank.rows, key=lambda b: (len(b), sorted(b))):
            if block in blocks:
                continue
            after = self.bank.losses(block)
            change = self._compare(now, after, block)
            known = change.known
            everybody = bool((change.mean[known] > self.settings.worth).all()) and known.any()
            if everybody and self._clearly_better(now, after, block):
                found.append(block)
        return found
