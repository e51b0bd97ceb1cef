"""Groups of clients with one model each; the number of groups is chosen on inner folds of the training rows.

Clients are summarised by their quadratic forms (A_i, c_i) around the model for all, so hard EM (Ghosh et al., "An
Efficient Framework for Clustered Federated Learning": assign by loss, then refit) costs nothing per row. Seeds are
drawn as in k-means++, with the excess loss of a client under the seeds so far as the distance. Afterwards every group
gets its own ridge path, and clients are reassigned by their true loss until nothing changes."""

from dataclasses import dataclass

import numpy as np

from coterie.comparison.exact.candidates.base import Fit
from coterie.comparison.exact.candidates.path import POOLED_PATH, fit_units
from coterie.comparison.exact.candidates.rows import Floats, Ints, Rows, chances, losses
from coterie.estimation.blocks import grams


@dataclass(frozen=True)
class Forms:
    """Loss of client i with coefficients β: Σ over outputs of ½βᵀA_iβ − c_iᵀβ, with β relative to the model for all.

    The leading axis holds several copies (the training parts of inner folds), worked on at once. One A may serve all."""

    A: Floats  # (copies or 1, outputs, clients, p, p)
    c: Floats  # (copies, outputs, clients, p)

    def losses(self, beta: Floats) -> Floats:
        """(copies, clients, models) for beta (copies, outputs, models, p)."""
        turned = beta[:, :, None].swapaxes(3, 4)  # (copies, outputs, 1, p, models)
        return np.asarray((turned * (0.5 * (self.A @ turned) - self.c[..., None])).sum((1, 3)))

    def solve(self, member: Floats, penalty: float) -> Floats:
        """Ridge coefficients (copies, outputs, models, p) with membership (copies, clients, models)."""
        f, q, m, p = self.c.shape
        weight = member.swapaxes(1, 2)[:, None]
        A = (weight @ self.A.reshape(-1, q, m, p * p)).reshape(f, q, -1, p, p) + penalty * np.eye(p)
        return np.asarray(np.linalg.solve(A, (weight @ self.c)[..., None])[..., 0])


def forms_of(rows: Rows, base: Floats) -> Forms:
    """Quadratic forms of one copy around ``base`` (1 + features, outputs)."""
    eta, q = rows.Z @ base, rows.n_outputs
    chance = chances(eta) if rows.classification else eta
    found = []
    for output in range(q):
        weight = rows.weight
        if rows.classification:  # of several classes each counts q/(q − 1) times its own curvature, as in `path`
            weight = np.maximum(chance[:, output] * (1 - chance[:, output]), 0.01) * (1 if q == 1 else q / (q - 1))
        rest = rows.y[:, output] - chance[:, output]
        rest = rest if rows.weight is None else rest * rows.weight
        found.append(grams(rows.Z, rest, weight, rows.owner, rows.n_clients))
    return Forms(np.stack([A for A, _ in found])[None], np.stack([c for _, c in found])[None])


def _seeds(forms: Forms, own: Floats, k: int, starts: int, rng: np.random.Generator) -> Floats:
    """Coefficients (copies, outputs, starts · k, p) of seed clients, each with a large excess loss under those before."""
    f, m = len(own), own.shape[2]
    best = (own * (0.5 * (forms.A @ own[..., None])[..., 0] - forms.c)).sum((1, 3))
    chosen = np.empty((f, starts, k), np.int64)
    chosen[..., 0] = rng.integers(m, size=(f, starts))
    excess = np.full((f, m, starts), np.inf)
    copy = np.arange(f)[:, None]
    for step in range(1, k):
        last = own.transpose(0, 2, 1, 3)[copy, chosen[..., step - 1]].transpose(0, 2, 1, 3)
        excess = np.minimum(excess, np.maximum(forms.losses(last) - best[..., None], 0))
        heap = np.cumsum(excess + 1e-12, axis=1)
        chosen[..., step] = (heap < rng.random((f, 1, starts)) * heap[:, -1:]).sum(1).clip(0, m - 1)
    return np.asarray(own.transpose(0, 2, 1, 3)[copy, chosen.reshape(f, -1)].transpose(0, 2, 1, 3))


def hard_em(forms: Forms, k: int, starts: int, penalty: float, rng: np.random.Generator) -> tuple[Floats, Ints]:
    """The best of several starts: coefficients (copies, outputs, k, p) and the group of every client."""
    f, q, m, p = forms.c.shape
    if k == 1:
        return forms.solve(np.ones((f, m, 1)), penalty), np.zeros((f, m), np.int64)
    own = np.asarray(np.linalg.solve(forms.A + penalty * np.eye(p), forms.c[..., None])[..., 0], dtype=np.float64)
    beta, group = _seeds(forms, own, k, starts, rng), np.full((f, m, starts), -1)
    for _ in range(30):
        loss = forms.losses(beta).reshape(f, m, starts, k)
        new = loss.argmin(3)
        if np.array_equal(new, group):
            break
        group = new
        beta = forms.solve(np.eye(k)[group].reshape(f, m, starts * k), penalty)
    size = (beta**2).reshape(f, q, starts, k, p).sum((1, 3, 4))
    best = (loss.min(3).sum(1) + penalty / 2 * size).argmin(1)
    copy = np.arange(f)
    return beta.reshape(f, q, starts, k, p)[copy, :, best], group[copy, :, best]


def _inner_folds(rows: Rows, n: int, rng: np.random.Generator) -> Ints:
    """A fold in 0…n−1 per row, balanced within every client."""
    order = np.lexsort((rng.random(len(rows.owner)), rows.owner))
    count = np.bincount(rows.owner, minlength=rows.n_clients)
    place = np.arange(len(order)) - np.repeat(np.cumsum(count) - count, count)
    fold = np.empty(len(order), np.int64)
    fold[order] = (place + rng.integers(n, size=rows.n_clients)[rows.owner[order]]) % n
    return fold


@dataclass(frozen=True)
class Groups:
    """Groups found by hard EM; their number is the one with the lowest loss on inner folds."""

    most: int = 6
    starts: int = 3
    inner_folds: int = 3
    name: str = "groups"

    def fit(self, rows: Rows, rng: np.random.Generator) -> Fit:
        base, converged = rows.pooled
        forms = forms_of(rows, base[0])
        penalty = max(1.0, rows.X.shape[1] / 10)
        k, inner = self._number(rows, base[0], forms, penalty, rng)
        group = hard_em(forms, k, 2 * self.starts, penalty, rng)[1][0]
        coef, group, settled = _refine(rows, group, base) if k > 1 else (base, group, True)
        notes = () if converged and settled else ("A model of a group stopped before it converged.",)
        return Fit(coef, group, coef[0], rows.classification, notes=notes, details={"inner_loss": inner})

    def _number(
        self, rows: Rows, base: Floats, forms: Forms, penalty: float, rng: np.random.Generator
    ) -> tuple[int, Floats]:
        """The number of groups with the lowest inner loss; the search stops after two that do not improve."""
        if rows.n_clients < 4:
            return 1, np.zeros(0)
        fold = _inner_folds(rows, self.inner_folds, rng)
        parts = [forms_of(rows.part(fold == f), base) for f in range(self.inner_folds)]
        test = Forms(np.concatenate([t.A for t in parts]), np.concatenate([t.c for t in parts]))
        return number_of_groups(forms, test, self.most, self.starts, penalty, rng)


def number_of_groups(
    forms: Forms, test: Forms, most: int, starts: int, penalty: float, rng: np.random.Generator
) -> tuple[int, Floats]:
    """The number of groups with the lowest loss on the parts ``test``, each left out of ``forms`` in turn; the search stops
    after two that do not improve."""
    most = min(most, forms.c.shape[2] // 2)
    if most < 2:
        return 1, np.zeros(0)
    train = Forms(forms.A - test.A, forms.c - test.c)
    losses: list[float] = []
    for k in range(1, most + 1):
        beta, group = hard_em(train, k, starts, penalty, rng)
        losses.append(float(np.take_along_axis(test.losses(beta), group[..., None], 2).sum()))
        if k - 1 - int(np.argmin(losses)) >= 2:
            break
    return int(np.argmin(losses)) + 1, np.array(losses)


def sorted_by_size(group: Ints) -> tuple[Ints, int]:
    """The same groups numbered by size, the largest first, without empty ones, and their number."""
    size = np.bincount(group)
    order = np.argsort(-size, kind="stable")
    order = order[size[order] > 0]
    rank = np.zeros(len(size), np.int64)
    rank[order] = np.arange(len(order))
    return rank[group], len(order)


def _refine(rows: Rows, group: Ints, base: Floats) -> tuple[Floats, Ints, bool]:
    """A ridge path per group, then reassignment by true loss; groups end sorted by size, empty ones disappear."""
    converged = True
    for _ in range(5):
        group, k = sorted_by_size(group)
        coef, settled = fit_units(rows.X, rows.y, group[rows.owner], k, POOLED_PATH, rows.classification, rows.weight)
        coef = np.where(np.isnan(coef), base, coef)
        converged &= settled
        new = _true_losses(rows, coef).argmin(1)
        if np.array_equal(new, group):
            break
        group = new
    return coef, group, converged


def _true_losses(rows: Rows, coef: Floats) -> Floats:
    """(clients, groups): summed loss of every client's training rows under every group's model."""
    total = np.zeros((rows.n_clients, len(coef)))
    for g in range(len(coef)):
        eta = rows.Z @ coef[g]
        loss = losses(eta, rows.y) if rows.classification else ((rows.y - eta) ** 2).sum(1)
        loss = loss if rows.weight is None else loss * rows.weight
        total[:, g] = np.bincount(rows.owner, weights=loss, minlength=rows.n_clients)
    return total
