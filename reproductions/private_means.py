"""Figure 4 of Ozkara et al.: private means of 10,000 Gaussian clients against ε₀.

"As printed" is Theorem 2: the printed clipping radius, too small for its claim (erratum E02), and the classical Gaussian
mechanism. "Corrected" clips to a radius that holds all means, and adds the least noise that is (ε₀, δ)-private.
"Central" is the same budget where a trusted server adds the noise once. δ and the bound of μ are not printed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from coterie.estimation.conventions import Array
from coterie.estimation.means import GaussianMeans, combine, least_risk
from coterie.estimation.quantiser import clipping_radius
from coterie.privacy import Privacy
from reproductions.claims import Claim, Margin
from reproductions.drawing import curves
from reproductions.experiment import Cells, Experiment, Measured, Records, Row, Scale
from reproductions.generate import gaussian_clients

SAMPLES, PRIOR, NOISE, DELTA = 15, 0.1**2, 0.5**2, 1e-4
DRAWS = 50  # of the noise: all clients share its error in the common mean
EPSILONS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
CLIENTS: dict[Scale, int] = {"quick": 10_000, "paper": 10_000}
FORMS = ("printed", "corrected", "central")
KNOWN: dict[str, Any] = {"prior_variance": PRIOR, "noise_variance": NOISE}


@dataclass(frozen=True)
class PrintedReports:
    """Theorem 2.2 as printed for d = 1: N(0, σ_q²) with σ_q = (b/ε₀)√(8 log(2/δ)) on means clipped to ±b."""

    radius: float
    epsilon: float

    delta: float = DELTA

    @property
    def variance(self) -> float:
        return float((self.radius / self.epsilon) ** 2 * 8 * np.log(2 / self.delta))

    def __call__(self, x: Array, rng: np.random.Generator, /) -> Array:
        return np.asarray(x + np.sqrt(self.variance) * rng.standard_normal(x.shape))


def printed_radius(*, clients: int, samples: float, prior_variance: float, noise_variance: float) -> float:
    """Theorem 2's own radius for means around 0, (σ_θ + σ_x/√n)√log(m²n), which is too small (erratum E02)."""
    return float((np.sqrt(prior_variance) + np.sqrt(noise_variance / samples)) * np.sqrt(np.log(clients**2 * samples)))


def radius(clients: int, printed: bool) -> float:
    how = printed_radius if printed else clipping_radius
    return how(clients=clients, samples=SAMPLES, **KNOWN)


def cells(scale: Scale) -> Cells:
    return {f"ε₀ = {epsilon}": epsilon for epsilon in EPSILONS}


def measure(epsilon: Any, seed: int, scale: Scale) -> Measured:
    """Mean squared error of every estimator on the same clients."""
    m = CLIENTS[scale]
    data = gaussian_clients(m, SAMPLES, 1, **KNOWN, rng=np.random.default_rng([seed, int(10 * epsilon)]))
    budget = Privacy(epsilon, DELTA, clip=radius(m, printed=False), noise="simulation")
    reports, samples = PrintedReports(radius(m, printed=True), epsilon), np.stack(data.samples)
    models = {
        "personalised": GaussianMeans(**KNOWN),
        "printed": GaussianMeans(**KNOWN, mechanism=reports),
        "corrected": GaussianMeans(**KNOWN, privacy=budget, trust="local"),
        "central": GaussianMeans(**KNOWN, privacy=budget),
    }
    found = {"local": _error(samples.mean(1), data.truth)}
    for name, model in models.items():
        draws = [seed * DRAWS + draw for draw in range(DRAWS if name in ("printed", "corrected") else 1)]
        fits = [model.set_params(seed=draw).fit(samples).estimates_ for draw in draws]
        found[name] = float(np.mean([_error(estimates, data.truth) for estimates in fits]))
    return found


def _error(estimates: Array, truth: Array) -> float:
    return 100 * float(np.square(estimates.reshape(truth.shape) - truth).mean())


def theory(epsilon: float, delta: float = DELTA) -> float:
    """Theorem 2's own risk, in hundredths."""
    m = CLIENTS["paper"]
    noise = PrintedReports(radius(m, printed=True), epsilon, delta).variance
    return 100 * float(combine(np.full(m, NOISE / SAMPLES), PRIOR, noise).risk[0])


def rows(found: Records) -> list[Row]:
    first = f"ε₀ = {EPSILONS[0]}"
    best = 100 * least_risk(samples=SAMPLES, **KNOWN, clients=CLIENTS["paper"])
    out = [
        Row("local", 100 * NOISE / SAMPLES, found.numbers(first, "local"), tolerance=0.02, reference="closed form"),
        Row("personalised", best, found.numbers(first, "personalised"), tolerance=0.02, reference="closed form"),
    ]
    for epsilon in (0.1, 0.2, 0.4, 0.8):
        cell = f"ε₀ = {epsilon}"
        out.append(
            Row(
                f"{cell}, as printed",
                theory(epsilon),
                found.numbers(cell, "printed"),
                tolerance=0.06,
                reference="Theorem 2",
            )
        )
        out += [Row(f"{cell}, {form}", None, found.numbers(cell, form)) for form in FORMS[1:]]
    return out


def claims(found: Records) -> list[Claim]:
    mean = {form: [found.mean(f"ε₀ = {e}", form) for e in EPSILONS] for form in ("local", "personalised", *FORMS)}
    between = [
        found.margin(
            f"{high} less {low} at ε₀ = {e}",
            lambda of, high=high, low=low, e=e: of(f"ε₀ = {e}")[high] - of(f"ε₀ = {e}")[low],
        )
        for form in FORMS[:2]
        for e in EPSILONS
        for high, low in (("local", form), (form, "personalised"))
    ]
    falls = [
        found.margin(
            f"{form}: error at ε₀ = {EPSILONS[0]} less that at {EPSILONS[-1]}",
            lambda of, form=form: of(f"ε₀ = {EPSILONS[0]}")[form] - of(f"ε₀ = {EPSILONS[-1]}")[form],
        )
        for form in FORMS[:2]
    ]

    def near(factor: float, epsilon: float) -> list[Margin]:
        """The error is less than so many times the non-private one."""
        cell = f"ε₀ = {epsilon}"
        what = f"{factor:g} times the non-private error less the corrected one's at {cell}"
        return [found.margin(what, lambda of: factor * of(cell)["personalised"] - of(cell)["corrected"])]

    excess = {form: mean[form][-1] / mean["personalised"][-1] - 1 for form in FORMS}
    return [
        Claim(
            "The private estimator lies between the local and the non-private personalised one.",
            between,
            f"At ε₀ = 0.1: local {mean['local'][0]:.2f}, as printed {mean['printed'][0]:.2f}, corrected "
            f"{mean['corrected'][0]:.2f}, personalised {mean['personalised'][0]:.2f} hundredths.",
        ),
        Claim(
            "Its error falls as ε₀ grows.",
            falls,
            f"Corrected: {mean['corrected'][0]:.2f} to {mean['corrected'][-1]:.2f}.",
        ),
        Claim(
            "With little privacy (ε₀ = 0.8) it recovers the non-private estimator.",
            near(1.1, EPSILONS[-1]),
            f"Its error is {100 * excess['printed']:.0f} % larger as printed, {100 * excess['corrected']:.0f} % with the "
            f"corrected noise, and {100 * excess['central']:.1f} % where a server adds the noise.",
            unlike="No δ and no bound of |μ|, which the paper does not print, changes that: with |μ| = 0, the most "
            f"favourable, even δ = 0.5 has {theory(0.8, 0.5):.2f} by Theorem 2 itself ({DELTA:g}: {theory(0.8):.2f}); not "
            f"private {mean['personalised'][-1]:.2f}.",
        ),
        Claim(
            "With much privacy (ε₀ = 0.1) it is only slightly worse than the non-private estimator.",
            near(1.25, EPSILONS[0]),
            f"Its error is {mean['corrected'][0] / mean['personalised'][0]:.1f} times as large.",
            unlike=f"There it is all but the local estimator ({mean['local'][0]:.2f}), by Theorem 2 itself with any δ: 0.5 "
            f"has {theory(0.1, 0.5):.2f}.",
        ),
    ]


def draw(found: Records) -> Figure:
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    names = {
        "local": "local",
        "printed": "private, as printed",
        "corrected": "private, corrected noise",
        "central": "private, noise by a server",
        "personalised": "personalised, not private",
    }
    per_form = {
        label: np.transpose([found.numbers(f"ε₀ = {e}", form) for e in EPSILONS]) for form, label in names.items()
    }
    ax = curves(figure.subplots(), EPSILONS, per_form, "", "ε₀", "mean squared error (hundredths)")
    ax.lines[3].set_linestyle("--")  # it lies on the next one
    ax.lines[3].set_zorder(3)
    ax.legend(frameon=False, fontsize=8, loc="lower left")
    ax.set_ylim(bottom=0)
    return figure


EXPERIMENT = Experiment(
    name="private-means",
    work="Ozkara et al.",
    shows="Figure 4, private estimation of means",
    cells=cells,
    measure=measure,
    rows=rows,
    claims=claims,
    draw=draw,
    size="as printed",
    seeds={"quick": 3, "paper": 10},
    setting=lambda scale: (
        f"10,000 clients with 15 samples, as in the paper; δ = {DELTA:g} and |μ| = 0 are ours, as the paper prints neither. "
        "Squared errors in hundredths."
    ),
)
