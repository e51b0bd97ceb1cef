"""How alike clients are, for maps and matrices; how stable groups are; and how they differ. Nothing here trains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from coterie.comparison.exact.distinguish import cohens_d

if TYPE_CHECKING:
    from coterie.comparison.result import Comparison

_ROWS = 200  # rows on which networks are compared
_CLIENTS = 1_000  # networks compared at most


def model_points(comparison: Comparison) -> pd.DataFrame | None:
    """A point per client: the distance of two is the root mean squared difference of their own models' predictions.

    Exact models: over all rows of the table, in units of the target (classes: log-odds), with the coefficients of `shrunk`,
    which are less noisy than those of `alone`; the latter where `shrunk` sees no difference. Networks: those of `local`,
    over at most 200 rows, in outputs (classes: probabilities). None where there are neither, or too many clients."""
    if comparison.decision is not None:
        return _exact_points(comparison)
    if "local" in comparison.results and len(comparison.table.columns) <= _CLIENTS:
        return _network_points(comparison)
    return None


def _exact_points(comparison: Comparison) -> pd.DataFrame | None:
    decision = comparison.decision
    assert decision is not None
    if not decision.predictors:
        return None
    for name in (n for n in ("shrunk", "alone") if n in decision.predictors):
        model = decision.predictors[name].model
        coefficients = model.fit.client_coefficients()  # (clients, 1 + columns, outputs)
        table = decision.table if model.levels is None else model.levels.shown(decision.table)
        values, vectors = np.linalg.eigh(table.second_moments(model.scaling.mean, model.scaling.inverse))
        root = vectors * np.sqrt(np.maximum(values, 0))
        points = np.einsum("mpo,pr->mro", coefficients, root) * model.scaling.y_scale
        flat = points.reshape(len(points), -1)
        if np.ptp(flat, axis=0).max() > 1e-6:
            break
    return pd.DataFrame(flat, index=decision.table.clients)


def _network_points(comparison: Comparison) -> pd.DataFrame:
    import torch

    live = comparison.results["local"][0].evaluation
    x, _, _ = live.federation.some_rows(_ROWS)
    models = live.personal(live.everyone())
    with torch.no_grad():
        each = [{k: t[i] for k, t in models.items()} for i in range(len(live.federation))]
        outputs = torch.stack([live.task.outputs(one, x).reshape(len(x), -1) for one in each])
        if comparison.about["kind"] == "classification" and outputs.shape[2] > 1:
            outputs = torch.softmax(outputs, 2)
    flat = outputs.double().numpy().reshape(len(outputs), -1) / np.sqrt(len(x))
    return pd.DataFrame(flat, index=comparison.table.columns)


def embedding(points: pd.DataFrame) -> pd.DataFrame:
    """The two directions in which the points differ most (principal components), and the share of variance they show."""
    centred = points.to_numpy() - points.to_numpy().mean(0)
    u, s, _ = np.linalg.svd(centred, full_matrices=False)
    s = np.where(s > 1e-6 * s.max(initial=0.0), s, 0.0)  # rounding errors are no direction
    flat = np.zeros((len(points), 2))
    flat[:, : min(2, len(s))] = (u * s)[:, :2]
    found = pd.DataFrame(flat, index=points.index, columns=["first direction", "second direction"])
    found.attrs["share"] = float((s[:2] ** 2).sum() / max((s**2).sum(), 1e-300))
    return found


def ordered_distances(points: pd.DataFrame, groups: pd.Series[Any], most: int = 120) -> pd.DataFrame:
    """Distances between clients, sorted by group and, inside a group, along the first direction.

    With more than `most` clients, neighbours in that order are averaged; a block is named by its group and size."""
    first = embedding(points).iloc[:, 0].to_numpy()
    order = np.lexsort((first, groups.to_numpy()))
    values, label = points.to_numpy()[order], groups.to_numpy()[order]
    names = [str(c) for c in points.index[order]]
    if len(values) > most:
        sizes = np.bincount(label)
        parts = [max(1, round(most * n / len(label))) if n else 0 for n in sizes]
        blocks = [
            b for g, k in enumerate(parts) if k for b in np.array_split(np.flatnonzero(label == g), min(k, sizes[g]))
        ]
        apart = np.sqrt(cdist(values, values, "sqeuclidean"))
        mean = np.array([[apart[np.ix_(a, b)].mean() for b in blocks] for a in blocks])
        named = [f"group {label[b[0]]}, {len(b)} clients ({i + 1})" for i, b in enumerate(blocks)]
        return pd.DataFrame(mean, index=named, columns=named)
    return pd.DataFrame(cdist(values, values), index=names, columns=names)


def stability(groups: pd.Series[Any], again: pd.DataFrame) -> pd.Series[Any]:
    """For every client the share of fits that put it in its group again. Groups have no names of their own, so those of a
    fit are first matched to the given ones, to agree on as many clients as can be."""
    codes, _ = pd.factorize(groups)
    kept = np.zeros(len(codes))
    for _, labels in again.iterrows():
        other, _ = pd.factorize(labels)
        table = np.zeros((codes.max() + 1, other.max() + 1), int)
        np.add.at(table, (codes, other), 1)
        mine, theirs = linear_sum_assignment(table, maximize=True)
        match = np.full(other.max() + 1, -1)
        match[theirs] = mine
        kept += match[other] == codes
    return pd.Series(kept / max(len(again), 1), index=groups.index, name="stability")


def tell_apart(comparison: Comparison, groups: pd.Series[Any], method: str = "groups") -> pd.DataFrame:
    """The differences between a method's groups, a row per group and property, the largest first.

    `what` is "column" (mean of an input), "effect" (coefficient of an input) or "target" (its mean, or the share of a
    class). `size` is Cohen's d between clients of the group and the others; an effect is in deviations of the target
    (classes: log-odds) per deviation of the column."""
    parts = [_differences(comparison.overview, groups, "target", _targets(comparison))]
    if method == "groups" and comparison.decision is not None and comparison.decision.predictors:
        told = comparison.distinguish()
        names = {"column": "mean_difference", "effect": "effect"}
        parts += [
            pd.DataFrame({"group": told["group"], "what": what, "name": told["column"], "size": told[source]})
            for what, source in names.items()
        ]
    elif comparison.results:
        parts.append(_differences(*_column_means(comparison, groups)))
    table = pd.concat(parts, ignore_index=True).dropna(subset="size")
    table = table[table["size"].abs() > 1e-9]
    return table.sort_values("size", key=abs, ascending=False, ignore_index=True)


def _targets(comparison: Comparison) -> list[str]:
    return [str(c) for c in comparison.overview.columns if str(c).startswith("share of ") or c == "mean target"]


def _differences(means: pd.DataFrame, groups: pd.Series[Any], what: str, names: list[str]) -> pd.DataFrame:
    """Cohen's d of clients' means: a group against all others."""
    values, label = means.loc[groups.index, names].to_numpy(np.float64), groups.to_numpy()
    rows = []
    for g in np.unique(label):
        size = cohens_d(values[label == g], values[label != g], 1e-12)
        rows += [{"group": int(g), "what": what, "name": n, "size": d} for n, d in zip(names, size, strict=True)]
    return pd.DataFrame(rows, columns=["group", "what", "name", "size"])


def _column_means(
    comparison: Comparison, groups: pd.Series[Any]
) -> tuple[pd.DataFrame, pd.Series[Any], str, list[str]]:
    data = comparison.results["local"][0].federation
    x, _, owner = data.rows("train")
    if data.columns is None or x.ndim != 2:
        return pd.DataFrame(index=groups.index), groups, "column", []
    frame = pd.DataFrame(np.asarray(x), columns=[str(c) for c in data.columns]).groupby(np.asarray(owner)).mean()
    frame = frame.reindex(np.arange(len(groups)))
    return frame.set_axis(groups.index, axis=0), groups, "column", list(frame.columns)
