"""How often is a client without a gain told that it gains or loses? Small test sets, log loss.

Two logistic models of equal expected log loss (one perturbed along the truth, one across it, as an overconfident and a
misdirected model) are compared on n test rows; the true mean difference is taken off. Printed: false alarms a side, at
a nominal 5 %, of the percentile bootstrap, of the paired t interval, of the same 1.4 times as wide (used by
`participation` for log loss), and of the bootstrap-t.

Run: python benchmarks/participation/false_alarms.py [WORLDS]
"""

import sys

import numpy as np
from scipy import stats

DRAWS = 200


def worlds(rng: np.random.Generator, n: int, count: int, strength: float, error: float) -> np.ndarray:
    """(count, n) differences in log loss with mean zero."""

    def rows(size: int) -> np.ndarray:
        x = rng.normal(size=(size, 2))
        y = rng.random(size) < 1 / (1 + np.exp(-strength * x[:, 0]))
        sign = np.where(y, 1.0, -1.0)
        sure, astray = (strength + error) * x[:, 0], strength * x[:, 0] + error * x[:, 1]
        return np.logaddexp(0, -sign * sure) - np.logaddexp(0, -sign * astray)

    return rows(count * n).reshape(count, n) - rows(2_000_000).mean()


def alarms(d: np.ndarray, rng: np.random.Generator) -> dict[str, tuple[float, float]]:
    """(told to gain, told to lose) where d > 0 is a gain."""
    count, n = d.shape
    mean, error = d.mean(1), d.std(1, ddof=1) / np.sqrt(n)
    drawn = d[np.arange(count)[:, None, None], rng.integers(n, size=(count, DRAWS, n))]
    means = drawn.mean(2)
    low, high = np.quantile(means, [0.05, 0.95], axis=1)
    wide = stats.t.ppf(0.95, n - 1) * error
    spread = np.maximum(drawn.std(2, ddof=1) / np.sqrt(n), 1e-12)
    t_low, t_high = np.quantile((means - mean[:, None]) / spread, [0.05, 0.95], axis=1)
    return {
        "percentile": (float((low > 0).mean()), float((high < 0).mean())),
        "paired t": (float((mean - wide > 0).mean()), float((mean + wide < 0).mean())),
        "t · 1.4": (float((mean - 1.4 * wide > 0).mean()), float((mean + 1.4 * wide < 0).mean())),
        "bootstrap-t": (float((mean - t_high * error > 0).mean()), float((mean - t_low * error < 0).mean())),
    }


def main(count: int) -> None:
    rng = np.random.default_rng(0)
    print(f"{count} worlds each; false alarms 'gains' / 'loses', nominal 5 % / 5 %")
    for n in (5, 10, 20, 40):
        for strength, error in ((1.0, 0.5), (2.0, 1.0), (1.0, 2.0)):
            found = alarms(worlds(rng, n, count, strength, error), rng)
            told = ", ".join(f"{name} {a:.1%} / {b:.1%}" for name, (a, b) in found.items())
            print(f"n={n:2d} strength {strength} error {error}: {told}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000)
