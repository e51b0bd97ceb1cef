"""How often is a claim about groups false? `python benchmarks/participation/groups.py --worlds 40 --out FILE.json`.

Logistic models judged by log loss, as `Participation.coalition()` judges them: one split, gradients of training rows, the
same settings. One training is one logistic regression. Worlds:

- equal: all clients alike; right is one group. False: somebody "would secede", "is better off alone", or two groups.
- unrelated: no two clients alike; right is alone. False: a group called stable and clear.
- opposites: half of the clients against the other half. pairs: four kinds of clients, two of each.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from scipy.special import expit

from coterie.comparison.exact.candidates.axes import Path as Penalties
from coterie.comparison.exact.candidates.path import fit_units
from coterie.comparison.exact.candidates.rows import losses
from coterie.evidence.coalitions.find import find
from coterie.evidence.coalitions.search import SPLIT_Z, Settings
from coterie.evidence.gains import widening

PATH = Penalties((0.3, 1.0, 3.0, 10.0, 30.0, 100.0), per_row=False, average=False)
WORLDS = {"equal": (8, 20), "unrelated": (8,), "opposites": (10,), "pairs": (8,)}
COLUMNS, ROWS = 4, 60  # rows to train on and to judge by, per client


def truth(kind: str, m: int) -> np.ndarray:
    """The kind of every client."""
    return {
        "equal": np.zeros(m, int),
        "unrelated": np.arange(m),
        "opposites": np.arange(m) % 2,
        "pairs": np.arange(m) % 4,
    }[kind]


def world(kind: str, m: int, seed: int) -> dict[str, object]:
    rng = np.random.default_rng([seed, 9])
    group = truth(kind, m)
    coef = rng.normal(size=(m, COLUMNS))
    coef *= 2 / np.linalg.norm(coef, axis=1, keepdims=True)
    if kind == "opposites":
        coef[1] = -coef[0]
    X = rng.normal(size=(m, 2 * ROWS, COLUMNS))
    y = (rng.random((m, 2 * ROWS)) < expit(np.einsum("mrd,md->mr", X, coef[group]))) * 1.0
    train, test = slice(0, ROWS), slice(ROWS, None)

    def scored(block: frozenset[int]) -> np.ndarray:
        members = sorted(block)
        x, t = X[members, train].reshape(-1, COLUMNS), y[members, train].reshape(-1, 1)
        return fit_units(x, t, np.zeros(len(x), int), 1, PATH, True)[0][0]

    def judged(block: frozenset[int]) -> list[np.ndarray]:
        beta = scored(block)
        return [losses(beta[0] + X[i, test] @ beta[1:], y[i, test, None]) for i in range(m)]

    alone = [judged(frozenset([i]))[i] for i in range(m)]
    beta = scored(frozenset(range(m)))
    miss = expit(beta[0] + X[:, train] @ beta[1:])[..., 0] - y[:, train]
    slopes = np.column_stack([miss.mean(1), np.einsum("mr,mrd->md", miss, X[:, train]) / ROWS])
    worth = 0.01 * float(np.mean([a.mean() for a in alone]))
    settings = Settings(worth=worth, z=SPLIT_Z, widen=widening("log_loss", False))
    found = find(judged, alone, slopes, list(range(m)), settings, brings=False, seed=seed)
    right = {frozenset(np.flatnonzero(group == g).tolist()) for g in np.unique(group) if (group == g).sum() > 1}
    told = not found.words().startswith("Too few rows")
    claims = {"seceding": bool(found.seceding), "stable": bool(found.groups) and found.stable and told}
    claims |= {"alone": bool(found.lone) and told, "several": len(found.groups) > 1 and told}
    return {"right": {frozenset(g) for g in found.groups} == right, "told": told, "support": found.support, **claims}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, default=40)
    parser.add_argument("--first-seed", type=int, default=9000)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    kept: dict[str, dict[str, float]] = {}
    for kind, sizes in WORLDS.items():
        for m in sizes:
            rows = [world(kind, m, given.first_seed + s) for s in range(given.worlds)]
            names = ("right", "told", "seceding", "alone", "several", "stable")
            kept[f"{kind} {m}"] = {name: sum(bool(r[name]) for r in rows) for name in names}
            sure = [r for r in rows if r["told"] and float(str(r["support"])) >= 0.8]
            kept[f"{kind} {m}"] |= {"sure": len(sure), "sure and right": sum(bool(r["right"]) for r in sure)}
            print(f"{kind} {m}, of {given.worlds}:", kept[f"{kind} {m}"], flush=True)
    if given.out is not None:
        given.out.write_text(json.dumps({"worlds": given.worlds, "first_seed": given.first_seed, **kept}, indent=1))


if __name__ == "__main__":
    main()
