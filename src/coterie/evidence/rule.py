"""From losses to a recommendation that allows for noise: one rule for exact fits and for trained methods.

1. A method is *learnable* when it beats the overall average beyond chance, per client or (stricter) per row; where rows
   follow in time, beyond what differs between clients. If no method is learnable, there is nothing to learn: alone
   overfits most, so in pure noise every other method would seem to gain.
2. A collaborative method is *proven* when it is learnable and its mean gain over alone exceeds two bounds: its error times
   a factor that corrects for choosing among several methods (sign flips of clients), and one per cent of the room for
   improvement.
3. If methods are proven, the rule recommends the simplest of them that is not measurably worse than the best.
4. Otherwise it recommends alone, if alone is learnable, or else the simplest learnable method, as a leaning.

Groups count only where they explain more than groups of gradually differing clients would (``gradient``, see `continuum`).

Clients that share a trained model also share the noise of its training. Neither rows nor clients show this noise; it shows
in splits that differ by more than their test rows explain. It is a second part of the error of a trained method's gain.
Where nothing is proven, the answer about trained methods leans to the simplest method whose gain is half of a proof, or else
to alone. Alone is called clear only with errors half as wide again, because alone profits more than other methods when rows
of one unit are in both training and test rows."""

from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from coterie.base.annotations import guarded
from coterie.evidence.gains import LEVEL, SHARED_ROWS, Floats
from coterie.evidence.mean_gains import MANY, Gain, gain, interval
from coterie.evidence.scores import WAYS, Scores

COLLABORATIVE = WAYS[1:]
LITTLE = 0.01  # a smaller share (of the room for improvement, or of the loss alone) is not worth a change
SERIES = 1.6  # wider errors of stretches of time, which follow each other: a correlation of 0.4 between neighbours
_FLIPS = 999


@dataclass(frozen=True)
class Verdict:
    """The rule's answer and its evidence. ``recommendation`` is one of the four ways; ``method`` is the method of that
    way or, where it is alone, the best rival."""

    recommendation: str
    sure: str
    learnable: tuple[str, ...]
    proven: tuple[str, ...]
    rival: str  # the best collaborative method, by mean loss
    needed: float  # how many standard errors a gain over alone must reach
    room: float
    over_alone: dict[str, Gain]
    method: str
    losses: dict[str, float]  # means over clients
    alone: float  # the loss alone, of which gains are shares
    level: float = LEVEL

    def bounds(self, method: str) -> tuple[float, float]:
        """The interval of a method's mean gain over alone."""
        return interval(self.over_alone[method], self.level) if method in self.over_alone else (0.0, 0.0)

    @property
    def share(self) -> tuple[float, float]:
        """The interval of the mean gain of ``method``, as a share of the loss alone."""
        low, high = self.bounds(self.method)
        return low / self.alone, high / self.alone

    @property
    def shown(self) -> str:
        """``sure``, limited by the interval that is shown with it: an interval of a clear gain leaves zero out."""
        if self.sure != "clear" or not self.over_alone:
            return self.sure
        low, high = self.share
        if self.recommendation == "alone":
            return "clear" if high <= LITTLE else "leaning"
        return "clear" if low > 0 else "borderline"


def flip_quantile(gains: Floats, level: float, rng: np.random.Generator) -> float:
    """The quantile of the largest studentised mean of centred gains (methods, clients) under random signs."""
    centred = gains - gains.mean(1, keepdims=True)
    m = gains.shape[1]
    means = rng.choice([-1.0, 1.0], size=(_FLIPS, m)) @ centred.T / m
    spread = np.sqrt(np.maximum((centred**2).mean(1) - means**2, 0) / (m - 1))
    ratio = np.where(spread > 0, means / np.where(spread > 0, spread, 1), 0)
    return float(np.quantile(ratio.max(1), level))


def _needed(over_alone: dict[str, Gain], alpha: float, seed: int) -> float:
    gains = list(over_alone.values())
    if not gains:
        return float("inf")
    m = gains[0].m
    if m < MANY:
        return float(stats.t.ppf(1 - alpha / len(gains), max(float(gains[0].sizes.sum()) - m, 1)))
    t = float(stats.t.ppf(1 - alpha, m - 1))
    told = [g.flips for g in gains if len(g.flips)]
    if told:
        flips = float(np.quantile(np.max(told, 0), 1 - alpha))
    else:
        flips = flip_quantile(np.stack([g.clients for g in gains]), 1 - alpha, np.random.default_rng([seed, 2]))
    return max(t, flips * t / float(stats.norm.ppf(1 - alpha)))


def _learnable(scores: Scores, alpha: float) -> tuple[str, ...]:
    found = []
    tried = scores.methods[1:]
    for j, name in enumerate(tried, start=1):
        g = gain(scores, j, 0)
        df = max(float(g.sizes.sum()) - g.m, 1.0)
        error = g.se_rows
        if scores.ordered and g.m >= MANY:
            error, df = max(error, g.se_clients), g.m - 1
        elif scores.ordered:
            error = SERIES * error
        by_client = g.mean > stats.t.ppf(1 - alpha / len(tried), df) * error
        by_row = (
            not scores.ordered
            and g.row_mean > stats.t.ppf(1 - alpha / (2 * len(tried)), df) * g.row_error
            and g.mean > 0
        )
        if by_client or by_row:
            found.append(name)
    return tuple(found)


def _with_noise(scores: Scores, gains: dict[str, Gain], needed: float, alpha: float) -> dict[str, Gain]:
    """Gains of trained methods with the noise that clients share: the variance over splits beyond that of their test rows,
    pooled over methods, since few splits say little of one.

    It is widened by Student's t for its few degrees of freedom, so that ``needed`` times it is the right bound."""
    share, splits = scores.test_share, scores.n_folds
    if share is None or splits < 2 or not gains:
        return gains
    excess = [
        g.fold_se**2 * splits - (1 - share) * g.se_rows**2 * splits / (1 + (splits - 1) * share) for g in gains.values()
    ]
    spread = float(np.sqrt(max(float(np.mean(excess)), 0.0) / splits))
    noise = spread * float(stats.t.ppf(1 - alpha / len(gains), len(gains) * (splits - 1))) / needed
    return {name: replace(g, noise=noise) for name, g in gains.items()}


@guarded
def judge(
    scores: Scores, alpha: float = 0.05, seed: int = 0, proper: Scores | None = None, gradient: bool = False
) -> Verdict:
    """The recommendation from these scores.

    Accuracy and the area under the curve ignore how small an effect is, and in noise their cross-validated value
    spreads more than its standard error says. With ``proper`` (the log loss of the same predictions) a method counts as
    learnable only if some method is also learnable by the log loss. With ``gradient`` the groups are only a gradient cut
    into pieces (`continuum`), and are not proven."""
    ways = COLLABORATIVE[:-1] if gradient else COLLABORATIVE
    over_alone = {name: gain(scores, j, 1) for j, name in enumerate(scores.others, start=2)}
    needed = _needed(over_alone, alpha, seed)
    over_alone = _with_noise(scores, over_alone, needed, alpha)
    loss = scores.mean_losses()
    constant, alone = (loss[name] for name in scores.methods[:2])
    room = max(constant - min(loss.values()), 0.0)
    rivals = [name for name in scores.others if scores.way(name) in ways] or scores.others
    rival = min(rivals, key=lambda name: loss[name], default=scores.methods[1])
    learnable = _learnable(scores, alpha)
    if proper is not None and not _learnable(proper, alpha):
        learnable = ()
    floor = LITTLE * room

    def beyond(share: float) -> tuple[str, ...]:
        """The methods whose gain reaches this share of the gain needed for a proof."""
        able = [name for name in scores.others if name in learnable and scores.way(name) in ways]
        return tuple(n for n in able if over_alone[n].beyond(share * needed, floor))

    proven = beyond(1.0)
    trained = scores.test_share is not None
    likely = beyond(0.5) if trained else ()
    method, sure = rival, "nothing"
    choice = "alone"
    if learnable and proven:
        method, sure = _simplest(scores, proven, over_alone, floor), "clear"
        choice = scores.way(method)
    elif scores.methods[1] in learnable and likely:
        method, sure = _simplest(scores, likely, over_alone, floor), "leaning"
        choice = scores.way(method)
    elif scores.methods[1] in learnable:
        little, wide = min(floor, LITTLE * abs(alone)), SHARED_ROWS if trained else 1.0
        worse = all(g.mean + wide * needed * g.gate_se() < little for g in over_alone.values())
        sure = "clear" if worse and over_alone else "leaning"
    elif learnable:
        method, sure = min(learnable, key=lambda name: _rank(scores, name)), "leaning"
        choice = scores.way(method)
    return Verdict(
        choice, sure, learnable, proven, rival, needed, room, over_alone, method, loss, scores.alone(), 1 - alpha
    )


def _rank(scores: Scores, name: str) -> tuple[int, float]:
    """A sort key: the simplest way comes first and, of two methods of one way, the one with the smaller loss."""
    return WAYS.index(scores.way(name)), scores.mean_losses()[name]


def _simplest(scores: Scores, proven: tuple[str, ...], over_alone: dict[str, Gain], floor: float) -> str:
    """The first proven method that is not measurably worse than the best of them."""
    loss = scores.mean_losses()
    best = min(proven, key=lambda name: loss[name])
    for name in sorted(proven, key=lambda name: _rank(scores, name)):
        behind = gain(scores, scores.methods.index(best), scores.methods.index(name))
        error = float(np.hypot(behind.gate_se(), over_alone[name].noise))
        if not (behind.mean > 1.645 * error and behind.mean > floor):
            return name
    return best


def decide_scores(
    scores: Scores, alpha: float = 0.05, seed: int = 0, proper: Scores | None = None, gradient: bool = False
) -> Verdict:
    """`judge`, marked borderline where single repeats of the cross-validation, or single splits, do not agree with it."""
    verdict = judge(scores, alpha, seed, proper, gradient)
    parts = scores.parts()
    if len(parts) > 1 and verdict.sure == "clear":
        alike = [_agrees(part, verdict, alpha, seed, gradient) for part in parts]
        if np.mean(alike) < 0.6:
            return replace(verdict, sure="borderline")
    return verdict


def _agrees(part: Scores, verdict: Verdict, alpha: float, seed: int, gradient: bool) -> bool:
    """Whether a part of the scores agrees. A repeat holds every row and must give the same answer; a split holds few rows
    and need only give a gain of the same sign."""
    if part.test_share is None:
        return judge(part, alpha, seed, gradient=gradient).recommendation == verdict.recommendation
    loss = part.mean_losses()
    return (loss[part.methods[1]] > loss[verdict.method]) == (verdict.recommendation != "alone")
