"""What to deploy: the model's expected loss beside the overall average, what new clients would get, and the next steps."""

from __future__ import annotations

from markupsafe import Markup

from coterie.base.text import listed, metric_name, number
from coterie.comparison.result import Comparison
from coterie.report.parts import Cell, Table, section


def deploying(c: Comparison) -> Markup:
    found = c.deploy
    if found is None:
        return Markup()
    metric, better = metric_name(c.metric), "lower" if c.about["lower_is_better"] else "higher"
    note = (
        f"The model with the lowest expected loss, whatever is proven about collaboration. Numbers are {metric} on unseen "
        f"rows, mean over clients ({better} is better)."
    )
    rows = [[Cell("the model to deploy"), Cell(number(found.loss)), Cell("")]]
    rows += [
        [Cell(str(name)), Cell(number(float(loss))), Cell(_share(float(found.weights.get(name, 0.0))))]
        for name, loss in found.losses.items()
        if name != "constant"
    ]
    rows.append([Cell("overall average"), Cell(number(found.constant)), Cell("")])
    table = Table(["model", metric, "weight"], rows, caption="The model to deploy and its parts")
    return section("What to deploy", note, text=found.words(), table=table, items=[*new_clients(c), *next_steps(c)])


def _share(weight: float) -> str:
    return f"{weight:.0%}" if weight >= 0.005 else "–"


def new_clients(c: Comparison) -> list[str]:
    """What clients that were left out got, in a sentence."""
    away = None if c.deploy is None else c.deploy.new_clients
    if away is None:
        return []
    by = f" They are placed by {listed(away.covariates, 4)}, the same in all rows of a client."
    return [
        f"A client never seen can expect {metric_name(c.metric)} {number(away.loss)}, measured on clients that were left "
        f"out; the overall average has {number(away.constant)}.{by if away.covariates else ''}"
    ]


def next_steps(c: Comparison) -> list[str]:
    """What to type next."""
    if c.model is None:
        return []
    return [
        "Predict: coterie predict model NEW.csv --out predictions.csv. NEW.csv has the columns of training, with "
        f"{c.model.client}.",
        "Next month: coterie update model NEW.csv adds rows with their targets, without the rows of training.",
        "Deploy: the folder model next to this page has no training rows; coterie.load_model reads it in Python. Delete "
        "its sums.safetensors before you give it to others: it holds sums over clients' rows, which only update needs.",
    ]
