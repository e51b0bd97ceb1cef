"""Does collaboration pay? Predict the risk of four ways to estimate, from the data at hand, and recommend one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from coterie.base.annotations import guarded
from coterie.base.arguments import Level, whole
from coterie.errors import DataError
from coterie.estimation.client_sums import Samples, client_sums
from coterie.estimation.conventions import Array
from coterie.estimation.rates import check_counts
from coterie.estimation.risks import counts_risks, means_risks, read_counts

Several = Annotated[int, whole(2)]
NEGLIGIBLE = 0.01  # A gain over local estimation below this share does not pay for collaborating.
WORDS = {
    "local": "every client on its own",
    "global": "one estimate for all",
    "shrunk": "every client's own, drawn towards the others as far as the noise calls for",
    "clustered": "one estimate per group of like clients",
}


@dataclass(frozen=True)
class Advice:
    """The predicted risk of each method with its interval, the recommended method, and methods that may be as good.

    table : method, risk, low, high, gain (1 − risk/local), with the gain's interval; sorted from best to worst.
    tied : methods whose difference from the recommended one could be chance, at the given level, or is below 1%.
    clusters : the number of clusters behind the "clustered" row; 0 if no number could be tried.
    variation : estimated "between" and "within" client variance.
    """

    table: pd.DataFrame
    recommendation: str
    tied: tuple[str, ...]
    variation: dict[str, float]
    measure: str
    clients: int
    level: float
    clusters: int

    def explain(self) -> str:
        """The advice in plain words."""
        rows = self.table.set_index("method")
        best, local = rows.loc[self.recommendation], rows.loc["local"]
        lines = [
            f"Recommended for these {self.clients} clients: {self.recommendation} ({WORDS[self.recommendation]}).",
            f"Its predicted {self.measure} is {best['risk']:.4g} "
            f"({self.level:.0%} interval {best['low']:.4g} to {best['high']:.4g}).",
        ]
        if self.recommendation == "local":
            lines.append("Collaboration does not pay here: no other method is predicted to gain 1% beyond chance.")
        else:
            lines.append(
                f"Alone, clients would have {local['risk']:.4g}: collaborating gains {best['gain']:.1%} "
                f"({best['gain_low']:.1%} to {best['gain_high']:.1%})."
            )
        lines.append(
            f"Clients differ with variance {self.variation['between']:.4g}; "
            f"one observation scatters around its client with variance {self.variation['within']:.4g}."
        )
        if self.tied:
            lines.append(f"As good, as far as these data tell: {', '.join(self.tied)}.")
        return "\n".join(lines)


@guarded
def advise(
    *,
    samples: Samples | None = None,
    successes: ArrayLike | None = None,
    trials: ArrayLike | None = None,
    counts: Any = None,
    clusters: Several | tuple[Several, ...] = (2, 3, 4),
    level: Level = 0.9,
    resamples: Annotated[int, whole(20)] = 500,
    seed: int = 0,
) -> Advice:
    """Predict the risk of local, global, shrunk and clustered estimation of means, rates or histograms; recommend one.

    Tables and federations are for `ct.compare`. Give exactly one of

    - `samples`: a list of (n_i, d) arrays, or (m, n, d): means, by Stein's unbiased risk estimate.
    - `successes` and `trials`: rates, by unbiased estimates with the client left out.
    - `counts`: a (users, tokens) table, dense or sparse, or a frame or file of (user, token, count) rows: histograms
      in squared distance, likewise.

    `clusters` lists the numbers of clusters tried (the best is kept). Intervals come from resampling clients and do not
    count the refitting of the methods.
    """
    tried = (clusters,) if isinstance(clusters, int) else tuple(clusters)
    given = sum(any(part is not None for part in kind) for kind in ([samples], [successes, trials], [counts]))
    if given != 1:
        raise DataError(
            "advise needs exactly one kind of data, samples; successes and trials; or counts; "
            f"got {given}. Pass one of them. Tables and federations are for compare."
        )
    rng = np.random.default_rng(seed)
    if samples is not None:
        risks, variation = means_risks(client_sums(samples), tried, seed)
    elif counts is not None:
        risks, variation = counts_risks(read_counts(counts), tried, seed)
    else:
        risks, variation = _risks_of_rates(successes, trials, tried, seed)
    return _decide(risks, variation, resamples, level, rng)


def _risks_of_rates(
    successes: ArrayLike | None, trials: ArrayLike | None, clusters: tuple[int, ...], seed: int
) -> tuple[dict[str, Array], dict[str, float]]:
    """Rates are histograms of two tokens, success and failure, whose errors are equal: half of the risk each."""
    if successes is None or trials is None:
        raise DataError("advise needs successes and trials together; got one of them. Pass both.")
    z, n = check_counts(successes, trials)
    risks, variation = counts_risks(read_counts(np.stack([z, n - z], axis=1)), clusters, seed)
    halves = {name: value / (1 if name == "clusters" else 2) for name, value in variation.items()}
    return {name: risk / 2 for name, risk in risks.items()}, halves


def _decide(
    risks: dict[str, Array], variation: dict[str, float], resamples: int, level: float, rng: np.random.Generator
) -> Advice:
    """The smallest risk, averaged over clients, wins, with two preferences for the simpler method.

    Clusters must beat the others beyond chance (they were tried in several numbers); and where local is within 1% of
    the winner, collaborating is not worth its cost. Intervals come from resampling clients.
    """
    floor, kept = variation.pop("floor"), int(variation.pop("clusters"))
    names, table = list(risks), np.stack(list(risks.values()), axis=1)
    draws = rng.multinomial(len(table), np.full(len(table), 1 / len(table)), size=resamples) @ table / len(table)
    risk, draws = np.maximum(table.mean(0), floor), np.maximum(draws, floor)
    tail = [(1 - level) / 2, (1 + level) / 2]
    best = int(risk.argmin())  # of equals the first, in the order local, global, shrunk, clustered
    if names[best] == "clustered":
        chance = [i for i in range(best) if np.quantile(draws[:, i] - draws[:, best], tail[0]) <= 0]
        best = min(chance, key=lambda i: risk[i], default=best)
    local = names.index("local")
    if risk[local] <= risk[best] + NEGLIGIBLE * abs(risk[local]):
        best = local
    low, high = np.quantile(draws, tail, axis=0)
    base = np.maximum(draws[:, [local]], 1e-300)
    gain_low, gain_high = np.quantile(1 - draws / base, tail, axis=0)
    gap_low = np.quantile(draws - draws[:, [best]], tail[0], axis=0)
    near = (gap_low <= 0) | (risk - risk[best] <= NEGLIGIBLE * abs(risk[local]))
    tied = tuple(name for i, name in enumerate(names) if i != best and near[i])
    gain = 1 - risk / max(risk[local], 1e-300)
    columns = {"method": names, "risk": risk, "low": low, "high": high}
    found = pd.DataFrame({**columns, "gain": gain, "gain_low": gain_low, "gain_high": gain_high})
    found = found.sort_values("risk", ignore_index=True)
    return Advice(found, names[best], tied, variation, "squared error", len(table), level, kept)
