"""A study whose server sees only sums over sites: alone against together, its page, and each site's own numbers."""

from __future__ import annotations

import html
import json
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coterie.base.disk import write_text
from coterie.base.text import number
from coterie.base.tree import Tree
from coterie.comparison.sites.result import STOPPED
from coterie.comparison.sites.summed import Summed, SummedStudy, conduct_summed
from coterie.data.federation import Federation
from coterie.engines import LocalEngine
from coterie.engines.base import rows_env
from coterie.evidence.gains import LEVEL, Gains, intervals, mark_intervals, widening
from coterie.exchange.messages import Ask, Ints, Reply
from coterie.flower.job import Job

PAGE, MODELS, NUMBERS = "report.html", "models.json", "numbers.json"
NOT_COMPARED = (
    "Shrunk models and groups were not compared: they need the sums of squares of single clients, which "
    "secure sums hide."
)
_STYLE = (
    "body{font:16px/1.5 sans-serif;max-width:44rem;margin:2rem auto}td,th{padding:.2rem 1rem .2rem 0;text-align:left}"
)
_WAYS = ("alone", "together")


@dataclass(frozen=True)
class SummedConsortium:
    """What server and sites make of a study's sums."""

    seeds: int = 3
    algorithms: tuple[str, ...] = ()

    def exchange(self, job: Job, federation: Federation) -> Generator[Ask, Reply, Any]:
        return conduct_summed(job.algorithm, len(federation), self.seeds)

    def decide(self, found: Summed, job: Job, federation: Federation, trials: Any, tell: Any) -> dict[str, Any]:
        return summary(found, job, federation)

    def conclude(self, told: dict[str, Any], folder: Path) -> dict[str, Any]:
        ways = "".join(f"<tr><td>{way}</td><td>{number(loss)}</td></tr>" for way, loss in told["losses"].items())
        table = f"<table><tr><th>way</th><th>mean {html.escape(told['metric'])}</th></tr>{ways}</table>"
        write_text(folder / PAGE, page("The study", [*told["said"], *told["notes"]], table))
        return {k: told[k] for k in ("recommendation", "sure", "interval")} | {"verdict": " ".join(told["said"])}

    def share(
        self, found: Summed, told: dict[str, Any], federation: Federation, own: Ints
    ) -> tuple[dict[str, Any], Tree]:
        """The same for all sites: the answer, and the numbers with which a site judges its own clients."""
        parts = {"scale": found.scale, "centre": found.shape.centre, "shared": found.shared, "final": found.final}
        parts |= {"shape": np.array([found.shape.repeats, found.shape.folds]), "common": np.array(found.majority)}
        parts["judged"] = np.array([found.common, found.variance, found.clients])
        return told, {k: torch.from_numpy(np.array(v)) for k, v in parts.items()}

    def keep(
        self, told: dict[str, Any], tensors: Tree, job: Job, federation: Federation, own: Ints, folder: Path
    ) -> None:
        """A site's page with the gains of its own clients, which nobody else computes, and their models."""
        study: SummedStudy = job.algorithm
        given = {k: tensors[k] for k in ("scale", "centre", "shape", "common", "shared")}
        reply = LocalEngine(workers=1).run(Ask(study.told, own, given), rows_env(federation, job.seed))
        losses = {k.removeprefix(f"{study.metric} "): t.numpy() for k, t in reply.values.items()}
        clients = [str(federation.clients[int(c)]) for c in reply.clients]
        sizes = federation.n_train[reply.clients].astype(np.float64)
        kept = judged(study.metric, losses, sizes, tensors["judged"].numpy())
        names = list(federation.columns or [f"x{j}" for j in range(federation.n_features)])
        models = {
            name: _models(study, tensors, *federation.train(federation.clients[int(c)]), names)
            for name, c in zip(clients, reply.clients, strict=True)
        }
        plan = federation.preprocessing
        about = {"kind": federation.kind, "classes": federation.classes, "use": told["recommendation"]}
        about["columns"] = None if plan is None else json.loads(plan.to_json(orient="records"))
        write_text(folder / MODELS, json.dumps(about | {"clients": models}, indent=1), private=True)
        mine = dict(zip(clients, kept, strict=True))
        write_text(folder / NUMBERS, json.dumps(told | {"clients": mine}, indent=1), private=True)
        rows = "".join(
            f"<tr><td>{html.escape(name)}</td><td>{number(one['alone'])}</td><td>{number(one['together'])}</td>"
            f"<td>{number(one['gain'], '+')} ({number(one['low'], '+')} to {number(one['high'], '+')})</td>"
            f"<td>{one['mark']}</td></tr>"
            if one["mark"] != "no score"
            else f"<tr><td>{html.escape(name)}</td><td colspan=4>too few rows for a score</td></tr>"
            for name, one in mine.items()
        )
        head = "<tr><th>client</th><th>alone</th><th>together</th><th>gain over alone</th><th></th></tr>"
        ends = [f"The models of our clients are in {MODELS}. These numbers were computed here and did not leave."]
        text = page("Our study", [*told["said"], *told["notes"]], f"<table>{head}{rows}</table>", ends)
        write_text(folder / PAGE, text, private=True)


def summary(found: Summed, job: Job, federation: Federation) -> dict[str, Any]:
    """The answer in plain values and sentences."""
    verdict, (low, high) = found.verdict, found.verdict.share
    size = found.variance if job.algorithm.metric == "mse" else 1.0
    said = (
        f"{verdict.recommendation}; {verdict.shown}. Together against alone: mean gain from {100 * low:.1f} to "
        f"{100 * min(high, 1.0):.1f} % of the {job.algorithm.metric} alone, over {found.clients} clients with "
        f"{found.rows} rows."
    )
    secure = job.secure
    assert secure is not None
    notes = [
        f"The server saw only sums over at least {secure.threshold} sites. Gains of single clients stay at their sites.",
        NOT_COMPARED,
    ]
    notes += [] if found.settled else [STOPPED]
    if len(found.gone):
        notes.append(f"{len(found.gone)} clients were lost on the way; sums that they told before are in the answer.")
    return {
        "recommendation": verdict.recommendation, "sure": verdict.shown, "metric": job.algorithm.metric,
        "interval": [low, min(high, 1.0)], "losses": {k: v / size for k, v in verdict.losses.items()},
        "clients": found.clients, "rows": found.rows, "said": [said], "notes": notes,
    }  # fmt: skip


def judged(metric: str, told: Mapping[str, Any], rows: Any, common: Any) -> list[dict[str, Any]]:
    """Per client the losses, and the gain of together with an interval, corrected for as many clients as the study has."""
    variance, size, clients = (float(v) for v in common)
    mean, within = told["mean"][:, 0], told["products"][:, 0]
    spread = np.maximum(within[:, 1, 1] + within[:, 2, 2] - 2 * within[:, 1, 2], 0)
    known = told["known"] > 0
    gain = np.where(known, mean[:, 1] - mean[:, 2], np.nan)
    error = widening(metric, True) * np.sqrt((spread + 4 * variance) / (rows + 3) / rows)
    found = []
    for i in range(len(rows)):
        one = Gains(gain[i : i + 1], error[i : i + 1], rows[i : i + 1] + 3, rows[i : i + 1])
        low, high = intervals(one, 1 - (1 - LEVEL) / max(clients, 1))
        unit = size if metric == "mse" else 1.0
        shown = dict(zip(("alone", "together"), mean[i, 1:] / unit, strict=True))
        shown |= {"gain": one.mean[0] / unit, "low": low[0] / unit, "high": high[0] / unit}
        made = {k: None if np.isnan(v) else float(v) for k, v in shown.items()}
        found.append(made | {"mark": str(mark_intervals(low, high, one.rows)[0])})
    return found


def _models(study: SummedStudy, told: Tree, x: Any, y: Any, names: list[str]) -> dict[str, Any]:
    """A client's models in the units of its columns."""
    scale, centre, final = (told[k].double().numpy() for k in ("scale", "centre", "final"))
    alone = study.own_model(x.double().numpy() / scale[:-1], y.double().numpy() / scale[-1], centre)
    made = {}
    for way, beta in zip(_WAYS, (alone, final[1]), strict=True):
        level = scale[-1] * (centre[-1] + beta[0] - beta[1:] @ centre[:-1])
        slopes = scale[-1] * beta[1:] / scale[:-1]
        made[way] = {"intercept": float(level), "coefficients": dict(zip(names, map(float, slopes), strict=True))}
    return made


def page(title: str, said: list[str], table: str, ends: list[str] | None = None) -> str:
    """A small page of its own."""
    parts = "".join(f"<p>{html.escape(line)}</p>" for line in said)
    last = "".join(f"<p>{html.escape(line)}</p>" for line in ends or [])
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style></head>'
        f"<body><h1>Should we learn together?</h1>{parts}{table}{last}</body></html>\n"
    )
