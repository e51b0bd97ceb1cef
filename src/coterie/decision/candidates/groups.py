"""Groups of clients with one model each; the number of groups is chosen on inner folds of the training rows.

Clients are summarised by their quadratic forms (A_i, c_i) around the model for all, so hard EM (Ghosh et al., "An
Efficient Framework for Clustered Federated Learning": assign by loss, then refit) costs nothing per row. Seeds are drawn as in
k-means++, with the excess loss of a client under the seeds so far as the distance. Afterwards every group gets its own
ridge path, and clients are reassigned by their true loss until nothing changes."""

from dataclasses import dataclass

import numpy as np

from ._path import POOLED, Path, fit_units
from ._rows import Floats, Ints, Rows, grams, sigmoid
from .base import Fit

_PATH = Path(POOLED, per_row=True, average=False)


@dataclass(frozen=True)
class _Forms:
    """Loss of client i with coefficients β: Σ over outputs of ½βᵀA_iβ − c_iᵀβ, with β relative to the model for all."""

    A: Floats  # (outputs, clients, p, p)
    c: Floats  # (outputs, clients, p)

    def losses(self, beta: Floats) -> Floats:
        """(clients, groups) for beta (outputs, groups, p)."""
        turned = beta[:, None].swapaxes(2, 3)  # (outputs, 1, p, groups)
        return np.asarray((turned * (0.5 * (self.A @ turned) - self.c[..., None])).sum((0, 2)))

    def solve(self, member: Floats, penalty: float) -> Floats:
        """Ridge coefficients (outputs, groups, p) of the groups with membership (clients, groups)."""
        q, m, p, _ = self.A.shape
        A = (member.T @ self.A.reshape(q, m, p * p)).reshape(q, -1, p, p) + penalty * np.eye(p)
        return np.asarray(np.linalg.solve(A, (member.T @ self.c)[..., None])[..., 0])

    def minus(self, other: "_Forms") -> "_Forms":
        return _Forms(self.A - other.A, self.c - other.c)


def _forms(rows: Rows, base: Floats) -> _Forms:
    """Quadratic forms around ``base`` (1 + features, outputs)."""
    found = []
    for output in range(rows.n_outputs):
        eta = rows.Z @ base[:, output]
        if rows.classification:
            chance = sigmoid(eta)
            weight = np.maximum(chance * (1 - chance), 0.01)
            found.append(grams(rows.Z, rows.y[:, output] - chance, weight, rows.owner, rows.n_clients))
        else:
            found.append(grams(rows.Z, rows.y[:, output] - eta, None, rows.owner, rows.n_clients))
    return _Forms(np.stack([A for A, _ in found]), np.stack([c for _, c in found]))


def _seeds(forms: _Forms, own: Floats, k: int, rng: np.random.Generator) -> Floats:
    """Coefficients (outputs, k, p) of k clients, each far from those before in excess loss."""
    best = (own * (0.5 * (forms.A @ own[..., None])[..., 0] - forms.c)).sum((0, 2))
    chosen = [int(rng.integers(own.shape[1]))]
    excess = np.full(own.shape[1], np.inf)
    while len(chosen) < k:
        excess = np.minimum(excess, np.maximum(forms.losses(own[:, chosen[-1:]])[:, 0] - best, 0))
        total = excess.sum()
        chosen.append(int(rng.choice(len(excess), p=excess / total)) if total > 0 else int(rng.integers(len(excess))))
    return own[:, chosen]


def _em(forms: _Forms, k: int, starts: int, penalty: float, rng: np.random.Generator) -> tuple[Floats, Ints]:
    """The best of several starts: coefficients (outputs, k, p) and the group of every client."""
    m = forms.A.shape[1]
    if k == 1:
        return forms.solve(np.ones((m, 1)), penalty), np.zeros(m, np.int64)
    own = np.linalg.solve(forms.A + penalty * np.eye(forms.A.shape[2]), forms.c[..., None])[..., 0]
    best: tuple[float, Floats, Ints] | None = None
    for _ in range(starts):
        beta, group = _seeds(forms, own, k, rng), np.full(m, -1)
        for _ in range(30):
            loss = forms.losses(beta)
            new = loss.argmin(1)
            if np.array_equal(new, group):
                break
            group = new
            beta = forms.solve(np.eye(k)[group], penalty)
        total = float(loss.min(1).sum()) + penalty / 2 * float((beta**2).sum())
        if best is None or total < best[0]:
            best = total, beta, group
    assert best is not None
    return best[1], best[2]


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
        everybody = np.zeros(len(rows.owner), np.int64)
        base, converged = fit_units(rows.X, rows.y, everybody, 1, _PATH, rows.classification)
        forms = _forms(rows, base[0])
        penalty = max(1.0, rows.X.shape[1] / 10)
        k, inner = self._number(rows, base[0], forms, penalty, rng)
        group = _em(forms, k, 2 * self.starts, penalty, rng)[1] if k > 1 else np.zeros(rows.n_clients, np.int64)
        coef, group, settled = _refine(rows, group, base) if k > 1 else (base, group, True)
        notes = () if converged and settled else ("A model of a group stopped before it converged.",)
        return Fit(coef, group, coef[0], rows.classification, notes=notes, details={"inner_loss": inner})

    def _number(
        self, rows: Rows, base: Floats, forms: _Forms, penalty: float, rng: np.random.Generator
    ) -> tuple[int, Floats]:
        """The number of groups with the lowest inner loss; the search stops after two that do not improve."""
        most = min(self.most, rows.n_clients // 2)
        fold = _inner_folds(rows, self.inner_folds, rng)
        tests = [_forms(rows.part(fold == f), base) for f in range(self.inner_folds)] if most > 1 else []
        losses: list[float] = []
        for k in range(1, most + 1):
            total = 0.0
            for test in tests:
                beta, group = _em(forms.minus(test), k, self.starts, penalty, rng)
                total += float(test.losses(beta)[np.arange(len(group)), group].sum())
            losses.append(total)
            if k - 1 - int(np.argmin(losses)) >= 2:
                break
        return (int(np.argmin(losses)) + 1 if losses else 1), np.array(losses)


def _refine(rows: Rows, group: Ints, base: Floats) -> tuple[Floats, Ints, bool]:
    """A ridge path per group, then reassignment by true loss; groups end sorted by size, empty ones disappear."""
    converged = True
    for _ in range(5):
        size = np.bincount(group)
        order = np.argsort(-size, kind="stable")
        order = order[size[order] > 0]
        rank = np.zeros(len(size), np.int64)
        rank[order] = np.arange(len(order))
        group = rank[group]
        coef, settled = fit_units(rows.X, rows.y, group[rows.owner], len(order), _PATH, rows.classification)
        coef = np.where(np.isnan(coef), base, coef)
        converged &= settled
        new = _true_losses(rows, coef).argmin(1)
        if np.array_equal(new, group):
            break
        if len(np.unique(new)) < len(order):
            group = new
            continue
        group = new
    return coef, group, converged


def _true_losses(rows: Rows, coef: Floats) -> Floats:
    """(clients, groups): summed loss of every client's training rows under every group's model."""
    total = np.zeros((rows.n_clients, len(coef)))
    for g in range(len(coef)):
        eta = rows.Z @ coef[g]
        loss = np.logaddexp(0, eta) - rows.y * eta if rows.classification else (rows.y - eta) ** 2
        total[:, g] = np.bincount(rows.owner, weights=loss.sum(1), minlength=rows.n_clients)
    return total
