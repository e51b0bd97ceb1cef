"""What a client brings to the others.

By default this is leave-one-out: how much larger the losses of the other members of its group are without it. Two equal
clients bring about 0 each, since either can replace the other. ``thorough`` with up to ten clients gives the exact Shapley
value of u(S), the mean score of S's model over all clients. With more clients it gives a least-squares fit of u on random
halves and their complements (Data Banzhaf, Wang and Jia 2023), with HC3 errors (MacKinnon and White 1985)."""

from itertools import combinations
from math import factorial
from typing import Any

import numpy as np

from coterie.evidence.coalitions.search import Bank, Block
from coterie.evidence.gains import Floats, gains_of

EXACT = 10  # clients up to which all coalitions are trained


def value(bank: Bank, block: Block) -> float:
    """u(S): minus the mean loss over all clients of S's model. A client without losses there counts with its loss alone."""
    losses = bank.everywhere(block)
    rows = np.where(np.isfinite(losses), losses, bank.alone)
    mean = gains_of(rows, bank.owner, bank.n_clients).mean
    return -float(np.nanmean(mean))


def leave_one_out(bank: Bank, blocks: list[Block]) -> tuple[Floats, Floats]:
    """(brings, standard error) of every client to the mean gain of the others in its group; NaN for a client alone.

    The error is that of paired rows: the same rows, with the client and without it."""
    brings, error = np.full(bank.n_clients, np.nan), np.full(bank.n_clients, np.nan)
    for block in blocks:
        if len(block) < 2:
            continue
        whole = bank.losses(block)
        for i in sorted(block):
            rest = block - {i}
            inside = np.isin(bank.owner, list(rest))
            rows = np.where(inside, bank.losses(rest) - whole, np.nan)
            given = gains_of(rows, bank.owner, bank.n_clients)
            brings[i], error[i] = given.average, given.average_error
    return brings, error


def shapley(bank: Bank) -> tuple[Floats, Floats]:
    """Exact Shapley values of u; they sum to u(all) − u(nobody). This takes 2ⁿ − 1 trainings and has no sampling error."""
    m = bank.n_clients
    worth = {frozenset(s): value(bank, frozenset(s)) for size in range(m + 1) for s in combinations(range(m), size)}
    share = [factorial(size) * factorial(m - size - 1) / factorial(m) for size in range(m)]
    found = np.zeros(m)
    for s, u in worth.items():
        for i in s:
            found[i] += share[len(s) - 1] * (u - worth[s - {i}])
    return found, np.zeros(m)


def halves(bank: Bank, pairs: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Least squares of u on membership over random halves and their complements, with HC3 standard errors."""
    m = bank.n_clients
    design: list[Any] = []
    worth: list[float] = []
    while len(design) < 2 * pairs:
        member = rng.random(m) < 0.5
        if not member.any() or member.all():
            continue
        for side in (member, ~member):
            design.append(np.concatenate([[1.0], side * 1.0]))
            worth.append(value(bank, frozenset(np.flatnonzero(side).tolist())))
    x, u = np.array(design), np.array(worth)
    inverse = np.linalg.pinv(x.T @ x)
    fitted = inverse @ x.T @ u
    leverage = np.clip(np.einsum("ij,jk,ik->i", x, inverse, x), 0, 1 - 1e-9)
    scaled = x * ((u - x @ fitted) / (1 - leverage))[:, None]
    variance = inverse @ (scaled.T @ scaled) @ inverse
    return fitted[1:], np.sqrt(np.diag(variance)[1:])


def thorough(bank: Bank, rng: np.random.Generator, times: int = 6) -> tuple[Floats, Floats, str]:
    """(brings, errors, method): Shapley values for up to ten clients, ``times``·n random halves for more."""
    if bank.n_clients <= EXACT:
        return *shapley(bank), "Shapley value, exact"
    return *halves(bank, max(times * bank.n_clients // 2, 2), rng), "least squares on random halves"
