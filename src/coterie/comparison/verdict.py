"""A comparison in plain words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.text import listed
from coterie.training.gains import GAINS, LOSES, ON_AVERAGE, UNCLEAR, clearly

if TYPE_CHECKING:
    from coterie.comparison.compare import Comparison
    from coterie.training.participation import Coalition

PLAIN_NAMES = {
    "local": "training alone",
    "fedavg": "one shared model (fedavg)",
    "finetuned": "a shared model fine-tuned by each client (finetuned)",
    "oracle": "one model for each true group (oracle)",
    "ifca": "one model for each group it finds (ifca)",
    "ditto": "an own model for each client, held close to a shared one (ditto)",
    "knnper": "a shared model corrected by each client's own neighbours (knnper)",
    "cfl": "groups split apart where clients disagree (cfl)",
}


_MOST_TOLD = 3  # methods beside the best that get a sentence
METRIC_NAMES = {"auc": "AUC", "r2": "R²", "mse": "mean squared error"}


def words(comparison: Comparison) -> str:
    """Which method is best on average, who gains and who loses with it, and what to do."""
    others, best = [m for m in comparison.methods if m != "local"], comparison.best
    if best is None:
        return "Only training alone was run, so there is nothing to compare it with. Add an algorithm."
    sentences = [_headline(comparison, best), _who(comparison, best)]
    told = [m for m in others if m != best and (comparison.who(m, LOSES) or comparison.who(m, GAINS))]
    sentences += [_who(comparison, m) for m in told[:_MOST_TOLD]]
    if len(told) > _MOST_TOLD:
        sentences.append(f"The table shows {len(told) - _MOST_TOLD} more methods with clear gains or losses.")
    wins = max(others, key=lambda m: len(comparison.who(m, GAINS)) - len(comparison.who(m, LOSES)))
    settled = comparison.who(best, GAINS) or comparison.average(best)[1] == GAINS
    return " ".join([*sentences, _advice(comparison, best if settled else wins)])


def stay_words(comparison: Comparison, coalition: Coalition | None) -> str:
    """Who would stay; with a coalition also what is left when leavers leave. Empty when there was nothing to join."""
    if coalition is not None:
        return coalition.summary()
    participation = comparison.participation()
    return "" if participation is None else participation.explain()


def _headline(comparison: Comparison, best: str) -> str:
    score, alone = (float(comparison.table.T[m].mean()) for m in (best, "local"))
    lower = " (lower is better)" if comparison.about["lower_is_better"] else ""
    several = len(comparison.methods) > 2
    subject = (
        f"Of the ways to learn together, {_plain(best)} does best on average:" if several else f"With {_plain(best)}:"
    )
    return (
        f"{subject} mean {metric_name(comparison.metric)} {number(score)} against "
        f"{number(alone)} for training alone{lower}, {ON_AVERAGE[comparison.average(best)[1]]}."
    )


def _who(comparison: Comparison, method: str) -> str:
    gain, lose, unclear = (comparison.who(method, m) for m in (GAINS, LOSES, UNCLEAR))
    if not gain and not lose:
        gains = [(str(c), float(g)) for c, g in comparison.gains.T[method].dropna().items()]
        client, change = max(gains, key=lambda pair: abs(pair[1]), default=("none", 0.0))
        largest = f" (the largest: {client}, {number(change, '+')})" if gains else ""
        return f"With {method}, no client's change is larger than chance could make it{largest}."
    parts = [clearly(listed(gain), "gain", len(gain)), clearly(listed(lose), "lose", len(lose))]
    rest = (
        f"; for the other {len(unclear) if len(unclear) > 1 else 'one'} the change is within chance" if unclear else ""
    )
    return f"With {method}, {' and '.join(parts)}{rest}."


def _advice(comparison: Comparison, best: str) -> str:
    """`best`: the method with the best mean, or, if nobody gains there, the one with the most gains over losses."""
    winners, losers = comparison.who(best, GAINS), comparison.who(best, LOSES)
    if winners and not losers:
        return f"Recommendation: learn together with {best}; nobody is clearly worse off."
    if winners:
        return (
            f"Recommendation: use {best} for those who gain, and let {listed(losers)} train alone: "
            f"{'they' if len(losers) > 1 else 'it'} would do better to leave."
        )
    if losers:
        return "Recommendation: train alone; learning together helps nobody clearly and harms some."
    if comparison.average(best)[1] == GAINS:
        return f"Recommendation: learn together with {best}; the gain is clear on average, though for no single client."
    return (
        "Recommendation: these data do not show that learning together pays; train alone, or collect more test rows "
        "before deciding."
    )


def method_label(method: str) -> str:
    """A method's name in a table."""
    return "local (alone)" if method == "local" else method


def metric_name(metric: str) -> str:
    return METRIC_NAMES.get(metric, metric.replace("_", " "))


def number(value: float, sign: str = "") -> str:
    """Three decimals, or four digits where that would be noise; `sign="+"` for gains."""
    return f"{value:{sign}.3f}" if abs(value) < 1000 else f"{value:{sign}.4g}"


def sentence_case(text: str) -> str:
    return text[:1].upper() + text[1:]


def _plain(method: str) -> str:
    return PLAIN_NAMES.get(method, method)
