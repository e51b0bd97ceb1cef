"""The words of the verdict: a comparison in plain sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from coterie.base.text import listed, metric_name, number
from coterie.comparison.exact.words import doubt
from coterie.comparison.exact.words import words as decision_words
from coterie.evidence.gains import GAINS, LOSES

if TYPE_CHECKING:
    from coterie.comparison.result import Comparison
    from coterie.evidence.participation import Coalition

PLAIN_NAMES = {
    "local": "training alone",
    "fedavg": "one shared model (fedavg)",
    "finetuned": "a shared model fine-tuned by each client (finetuned)",
    "oracle": "one model for each true group (oracle)",
    "ifca": "one model for each group it finds (ifca)",
    "ditto": "a model of its own for each client, held close to a shared one (ditto)",
    "knnper": "a shared model corrected by each client's own neighbours (knnper)",
    "cfl": "groups split apart where clients disagree (cfl)",
}
WAYS = {
    "alone": "every client trains alone",
    "together": "one model for all",
    "shrunk": "every client has its own model, drawn towards the others",
    "groups": "one model per group of like clients",
}
SURE = {
    "clear": "clear",
    "borderline": "borderline",
    "leaning": "only a leaning",
    "nothing": "nothing can be learned from these columns",
}
_MOST_TOLD = 4


def headline(comparison: Comparison) -> str:
    """`shrunk (every client has its own model, …); clear.`"""
    way = comparison.recommendation
    return f"{way} ({WAYS[way]}); {SURE[comparison.sure]}."


def words(comparison: Comparison) -> str:
    """The recommendation comes first; its reasons, single clients, trained methods, failures and warnings follow."""
    return f"Recommendation: {headline(comparison)} {facts(comparison)}"


def facts(comparison: Comparison) -> str:
    sentences = [decision_words(comparison.decision)] if comparison.decision is not None else _trained(comparison)
    if comparison.decision is not None and comparison.results:
        sentences.append(_beside(comparison))
    sentences += [f"{name} failed: {why}" for name, why in comparison.failed.items()]
    sentences += [s[:1].upper() + s[1:] for s in comparison.warnings]
    return " ".join(s for s in sentences if s)


def _trained(comparison: Comparison) -> list[str]:
    """Sentences about the trained methods where the recommendation comes from them."""
    others = [m for m in comparison.methods if m != "local"]
    if not others:
        return ["Only training alone was run, so there is nothing to compare it with. Add an algorithm."]
    if comparison.sure == "nothing":
        return ["No method predicts better than the overall average; these inputs do not support a model."]
    method = comparison.method
    if method == "local":
        return ["Training alone is the only method that measurably beats the overall average."]
    low, high = comparison.bounds(method)
    score, alone = (float(comparison.table.T[m].mean()) for m in (method, "local"))
    lower = " (lower is better)" if comparison.about["lower_is_better"] else ""
    gain = float(comparison.gains.T[method].mean())
    told = (
        f"With {PLAIN_NAMES.get(method, method)}: mean {metric_name(comparison.metric)} {number(score)} against "
        f"{number(alone)} for training alone{lower}, a mean gain of {number(gain, '+')} "
        f"(interval {number(low, '+')} to {number(high, '+')})."
    )
    if comparison.sure == "borderline" and comparison.judgement is not None:
        told += f" Borderline: {doubt(comparison.judgement)}."
    rival = "" if comparison.recommendation != "alone" else "Its best rival is not shown to help."
    return [rival, told, singles(comparison, method)]


def singles(comparison: Comparison, method: str) -> str:
    """Names the clients that measurably gain or lose, after the correction for looking at many clients."""
    gain, lose = (comparison.who(method, mark) for mark in (GAINS, LOSES))
    if not gain and not lose:
        return f"With {method}, no single client can be singled out as gaining or losing."
    parts = []
    if gain:
        parts.append(f"{listed(gain)} measurably {'gain' if len(gain) > 1 else 'gains'}")
    if lose:
        parts.append(f"{listed(lose)} measurably {'lose' if len(lose) > 1 else 'loses'}")
    return f"With {method}, {' and '.join(parts)} (corrected for looking at many clients)."


def _beside(comparison: Comparison) -> str:
    """The gains of trained methods, where exact models make the recommendation."""
    others = [m for m in comparison.learned if m != "local"]
    if not others:
        return ""
    means = {m: float(np.nanmean(comparison.gains.T[m])) for m in others}
    shown = sorted(others, key=lambda m: -means[m])[:_MOST_TOLD]
    parts = []
    for m in shown:
        low, high = comparison.bounds(m)
        parts.append(f"{m} {number(means[m], '+')} ({number(low, '+')} to {number(high, '+')})")
    return (
        f"Mean gains of trained methods over their own tuned local, in {metric_name(comparison.metric)}: "
        f"{'; '.join(parts)}. They do not change the recommendation."
    )


def stay_words(comparison: Comparison, coalition: Coalition | None) -> str:
    """Sentences on the clients that would stay; a coalition adds the group that is left after others leave.

    The text is empty when nothing was trained."""
    if coalition is not None:
        return coalition.verdict()
    participation = comparison.participation()
    return "" if participation is None else participation.explain()
