"""The words of the verdict on exact fits: a decision in plain sentences."""

import numpy as np

from coterie.base.text import listed
from coterie.comparison.exact.decision import Decision
from coterie.evidence.gains import GAINS, LOSES
from coterie.evidence.rule import COLLABORATIVE, Verdict

_WAYS = {
    "alone": "Alone",
    "together": "Together",
    "shrunk": "Shrunk towards all",
    "groups": "In groups",
}


def words(decision: Decision) -> str:
    """Sentences on the recommendation, the size and certainty of the gain, single clients, and the measurement."""
    sentences = [_headline(decision), *decision.doubts]
    if decision.verdict is not None:
        sentences += [s for s in (_gradient(decision), _singles(decision), _settle(decision), _method(decision)) if s]
    return " ".join(sentences)


def _percent(share: float) -> str:
    """A share as a whole percentage, with a decimal below ten per cent."""
    text = f"{100 * share:.0f}" if abs(share) >= 0.1 else f"{100 * share:.1f}"
    return "0" if text in ("-0.0", "0.0", "-0") else text.replace("-", "−")


def _span(decision: Decision) -> str:
    low, high = decision.interval
    return f"interval {_percent(low)} to {_percent(high)} %"


def _headline(decision: Decision) -> str:
    if decision.sure == "nothing":
        if decision.verdict is None:
            return "Alone: the target never changes, so there is nothing to learn."
        return "No method predicts better than the overall average; these columns do not support a model. Stay alone."
    assert decision.verdict is not None
    mean = decision.losses.mean(axis=1)
    if decision.recommendation == "alone" and mean["alone"] <= 1e-9 * mean["constant"]:
        return "Alone: every client predicts its own rows without error, so there is nothing to gain."
    share = decision.verdict.over_alone[decision.method].mean / decision.scores.alone()
    less, span = _percent(share), _span(decision)
    if decision.recommendation == "alone":
        if decision.sure == "clear":
            return f"Alone: collaboration does not help; the best rival, {decision.method}, gains {less} % ({span})."
        if decision.interval[0] > 0:
            return (
                f"Alone: the best rival, {decision.method}, has {less} % less error ({span}), but that is less than one per "
                "cent of what the columns explain, too little to be worth a change."
            )
        return (
            f"Alone: collaboration is not shown to help; the best rival, {decision.method}, has {less} % less error "
            f"({span})."
        )
    if decision.sure == "leaning" and not decision.doubts:
        return (
            f"Leaning to {decision.recommendation}: it is the only way to measurably beat the overall average; its "
            f"gain over alone, {less} % ({span}), is unproven."
        )
    border = f" Borderline: {doubt(decision.verdict)}." if decision.sure == "borderline" else ""
    others = _others(decision, [name for name in COLLABORATIVE if name != decision.recommendation])
    border += " Only a leaning:" if decision.doubts else ""
    return f"{_WAYS[decision.method]}: error {less} % lower than alone on unseen rows ({span}).{others}{border}"


def doubt(verdict: Verdict) -> str:
    """The reason why a gain is borderline."""
    if verdict.sure == "borderline":
        return "other splits of the same rows give another answer"
    return "the rule finds a gain, but the interval of its size, which is wide on purpose, includes zero"


def _others(decision: Decision, others: list[str]) -> str:
    loss = decision.losses.mean(axis=1)
    assert decision.verdict is not None
    floor = 0.01 * decision.verdict.room
    better = [name for name in others if loss[name] < loss[decision.recommendation] - floor]
    worse = [name for name in others if name not in better]
    parts = []
    if better:
        parts.append(f" {' and '.join(better).capitalize()} may be better still, but not measurably.")
    if worse:
        are = "are" if len(worse) > 1 else "is"
        parts.append(f" {' and '.join(worse).capitalize()} {are} not better than that.")
    return "".join(parts)


def _gradient(decision: Decision) -> str:
    """Whether clients differ by groups or gradually, where the recommendation rests on their differences."""
    found = decision.continuum
    loss = decision.losses.mean(axis=1)
    alike = decision.recommendation == "together" or (
        decision.recommendation == "alone" and loss["together"] <= loss["alone"]
    )
    if found is None or decision.sure == "nothing" or alike:
        return ""
    share = f"{found.groups} groups explain {_percent(found.explained)} % of the differences between clients"
    without = f"clients that differ gradually would show up to {_percent(found.reference)} %"
    if found.exceeded:
        return f"The clients form groups: {share}; {without}."
    return f"The clients form a gradient rather than groups: {share}, and {without}."


def _singles(decision: Decision) -> str:
    if decision.sure == "nothing":
        return ""
    gains = decision.marks.index[decision.marks == GAINS]
    loses = decision.marks.index[decision.marks == LOSES]
    if not len(gains) and not len(loses):
        return f"No single client can be singled out as gaining or losing. {_share(decision)}".strip()
    name = decision.method
    parts = [f"{len(gains)} of {len(decision.marks)} clients measurably gain with {name}"] if len(gains) else []
    if len(loses):
        some = listed(loses, 5)
        parts.append(f"{len(loses)} measurably {'lose' if len(loses) > 1 else 'loses'} with {name} ({some})")
    return f"{'; '.join(parts)} (corrected for looking at many clients). {_share(decision)}".strip()


def _share(decision: Decision) -> str:
    found = decision.gainers()
    return "" if found is None else found.words(decision.method)


def _settle(decision: Decision) -> str:
    if decision.sure not in ("leaning", "borderline"):
        return ""
    times = decision.times_needed()
    if not 1 < times <= 1000:
        return ""
    if len(decision.scores.scored) >= 10:  # the error is that between clients, which more rows hardly lower
        what = f"{_rounded(decision.table.n_clients * times)} clients"
    else:
        what = f"{_rounded(decision.table.sizes.mean() * times)} rows per client"
    return f"If the gain stayed, about {what} would settle it."


def _rounded(count: float) -> int:
    """A number of which two digits are known."""
    return int(np.ceil(float(f"{count:.2g}")))


def _method(decision: Decision) -> str:
    table = decision.table
    unscored = int(np.isnan(decision.losses.loc["alone"].to_numpy()).sum())
    left = f" ({unscored} without a score)" if unscored else ""
    times = "once" if decision.repeats == 1 else f"{decision.repeats} times"
    start = f"{table.n_clients} clients{left}, {table.n_rows} rows; judged by {decision.metric}"
    if table.time is not None:
        folds = decision.scores.n_folds
        return f"{start} on {folds} stretches of time, each by models of the rows before it, seed {decision.seed}."
    whole = " by whole units" if table.unit is not None else ""
    return (
        f"{start} on {decision.folds} folds "
        f"inside every client{whole}, {times}, seed {decision.seed}: each model saw {decision.folds - 1}/{decision.folds} "
        "of the rows."
    )
