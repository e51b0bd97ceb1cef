"""From losses to a recommendation that survives noise.

1. A method is *learnable* when it beats the overall average beyond chance, per client or (stricter) per row. If none
   does, there is nothing to learn: alone overfits most, so in pure noise every other method would seem to gain over it.
2. A collaborative method is *proven* when it is learnable and its mean gain over alone exceeds its error, by a factor
   that pays for choosing among three methods (sign flips of clients), and one per cent of the room for improvement.
3. Of the proven methods the simplest is taken that is not measurably worse than the best.
4. Otherwise alone, if alone itself is learnable; otherwise the simplest learnable method, as a leaning."""

from dataclasses import dataclass

import numpy as np
from scipy import stats

from coterie.annotations import guarded
from coterie.decision.candidates.rows import Floats
from coterie.decision.errors_of_gains import Gain, gain
from coterie.decision.evaluation import METHODS, Scores

COLLABORATIVE = ("together", "shrunk", "groups")  # the simplest first
_FLIPS = 999
_ROOM = 0.01  # smaller differences, as a share of the room for improvement, are not worth a change


@dataclass(frozen=True)
class Verdict:
    """The rule's answer and what it rests on."""

    recommendation: str
    sure: str
    learnable: tuple[str, ...]
    proven: tuple[str, ...]
    rival: str  # the best collaborative method, by mean loss
    needed: float  # how many standard errors a gain over alone must reach
    room: float
    over_alone: dict[str, Gain]


def flip_quantile(gains: Floats, level: float, rng: np.random.Generator) -> float:
    """The quantile of the largest studentised mean of centred gains (methods, clients) under random signs."""
    centred = gains - gains.mean(1, keepdims=True)
    m = gains.shape[1]
    means = rng.choice([-1.0, 1.0], size=(_FLIPS, m)) @ centred.T / m
    spread = np.sqrt(np.maximum((centred**2).mean(1) - means**2, 0) / (m - 1))
    ratio = np.where(spread > 0, means / np.where(spread > 0, spread, 1), 0)
    return float(np.quantile(ratio.max(1), level))


def _needed(over_alone: dict[str, Gain], alpha: float, seed: int) -> float:
    m = next(iter(over_alone.values())).m
    if m < 10:
        rows = float(next(iter(over_alone.values())).sizes.sum())
        return float(stats.t.ppf(1 - alpha / len(COLLABORATIVE), max(rows - m, 1)))
    t = float(stats.t.ppf(1 - alpha, m - 1))
    flips = flip_quantile(
        np.stack([g.clients for g in over_alone.values()]), 1 - alpha, np.random.default_rng([seed, 2])
    )
    return max(t, flips * t / float(stats.norm.ppf(1 - alpha)))


def _learnable(scores: Scores, alpha: float) -> tuple[str, ...]:
    constant = METHODS.index("constant")
    found = []
    for name in METHODS[1:]:
        g = gain(scores, METHODS.index(name), constant)
        df = max(float(g.sizes.sum()) - g.m, 1.0)
        by_client = g.mean > stats.t.ppf(1 - alpha / 4, df) * g.se_rows
        by_row = g.row_mean > stats.t.ppf(1 - alpha / 8, df) * g.row_error and g.mean > 0
        if by_client or by_row:
            found.append(name)
    return tuple(found)


@guarded
def judge(
    scores: Scores, alpha: float = 0.05, seed: int = 0, proper: Scores | None = None, gradient: bool = False
) -> Verdict:
    """The recommendation from these scores.

    Accuracy and the area under the curve ignore how small an effect is, and in noise their cross-validated value
    spreads more than its standard error says. With ``proper`` (the log loss of the same predictions) a method counts as
    learnable only if some method is learnable by that, too. With ``gradient`` the groups are no more than a gradient cut
    into pieces (`continuum`), and are not proven."""
    ways = COLLABORATIVE[:-1] if gradient else COLLABORATIVE
    alone = METHODS.index("alone")
    over_alone = {name: gain(scores, METHODS.index(name), alone) for name in COLLABORATIVE}
    loss = dict(zip(METHODS, scores.losses().mean(1), strict=True))
    room = max(float(loss["constant"] - min(loss.values())), 0.0)
    rival = min(ways, key=lambda name: loss[name])
    learnable = _learnable(scores, alpha)
    if proper is not None and not _learnable(proper, alpha):
        learnable = ()
    needed = _needed(over_alone, alpha, seed)
    floor = _ROOM * room
    proven = tuple(
        name for name in ways if name in learnable and over_alone[name].beyond(needed) and over_alone[name].mean > floor
    )
    if not learnable:
        choice, sure = "alone", "nothing"
    elif proven:
        choice, sure = _simplest(scores, proven, floor), "clear"
    elif "alone" in learnable:
        little = min(floor, _ROOM * float(loss["alone"]))
        worse = all(g.mean + needed * g.gate_se() < little for g in over_alone.values())
        choice, sure = "alone", "clear" if worse else "leaning"
    else:
        choice, sure = learnable[0], "leaning"
    return Verdict(choice, sure, learnable, proven, rival, needed, room, over_alone)


def _simplest(scores: Scores, proven: tuple[str, ...], floor: float) -> str:
    """The first proven method that is not measurably worse than the best of them."""
    loss = scores.losses().mean(1)
    best = min(proven, key=lambda name: float(loss[METHODS.index(name)]))
    for name in proven:
        behind = gain(scores, METHODS.index(best), METHODS.index(name))
        if not (behind.mean > 1.645 * behind.gate_se() and behind.mean > floor):
            return name
    return best


def decide_scores(
    scores: Scores, alpha: float = 0.05, seed: int = 0, proper: Scores | None = None, gradient: bool = False
) -> Verdict:
    """`judge`, marked borderline where single repeats of the cross-validation do not agree with it."""
    verdict = judge(scores, alpha, seed, proper, gradient)
    if scores.repeats > 1 and verdict.sure == "clear":
        each = (judge(scores.only(r), alpha, seed, gradient=gradient).recommendation for r in range(scores.repeats))
        alike = [found == verdict.recommendation for found in each]
        if np.mean(alike) < 0.6:
            return Verdict(**{**verdict.__dict__, "sure": "borderline"})
    return verdict
