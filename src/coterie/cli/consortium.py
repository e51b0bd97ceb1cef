"""A study on sites: its job from a file, the server's page, each site's own page and models, and a trial on one machine."""

from __future__ import annotations

import html
import json
import math
import tempfile
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from pydantic import Field

from coterie.base.disk import write_text
from coterie.base.text import number
from coterie.base.tree import Tree
from coterie.cli.build import checked_sections
from coterie.cli.config import Section
from coterie.cli.summed_study import SummedConsortium
from coterie.comparison.result import Comparison
from coterie.comparison.sites.conduct import conduct
from coterie.comparison.sites.result import scaling_of, shown, study_of
from coterie.comparison.sites.study import Study
from coterie.comparison.sites.summed import SummedStudy, refuse_unfit
from coterie.data.federation import Federation
from coterie.errors import ConfigError, CoterieError, DataError
from coterie.exchange.messages import Ask, Ints, Reply
from coterie.flower.engine import Failure
from coterie.flower.job import Job
from coterie.flower.site import Site
from coterie.flower.studies import serve_study
from coterie.flower.trials import Trials
from coterie.learning.rows_task import rows_task

PAGE, MODELS, NUMBERS = "report.html", "models.json", "numbers.json"


class StudySection(Section):
    """[compare] of a deployment."""

    metric: str | None = None
    seeds: int = Field(3, ge=1)
    least: int | None = Field(None, ge=1)
    algorithms: str | list[str] | None = None
    rounds: int | None = Field(None, ge=1)


class StudyFile(Section):
    compare: StudySection


@dataclass(frozen=True)
class Consortium:
    """What server and sites make of a study's answers."""

    seeds: int = 3
    algorithms: tuple[str, ...] = ()
    rounds: int | None = None

    def exchange(self, job: Job, federation: Federation) -> Generator[Ask, Reply, Any]:
        study_of(federation, job.algorithm.metric, job.seed, None)
        return conduct(job.algorithm, len(federation), self.seeds)

    def decide(self, found: Any, job: Job, federation: Federation, trials: Trials, tell: Any) -> Comparison:
        seeds = range(self.seeds)
        made = shown(found, job.algorithm, federation, seeds)
        if not self.algorithms:
            return made
        from coterie.comparison.sites.learned import with_learned

        def note(name: str, seed: int) -> None:
            tell(f"trains {name}, split {seed}")

        named = list(self.algorithms)
        return with_learned(made, trials.federation, named, self.rounds, seeds, trials.engine, trials, note)

    def conclude(self, made: Comparison, folder: Path) -> dict[str, Any]:
        from coterie.report.page import write_report

        made.save(folder)
        write_report(made, folder / PAGE)
        return {"recommendation": made.recommendation, "sure": made.sure, "verdict": made.verdict()}

    def share(self, found: Any, made: Comparison, federation: Federation, own: Ints) -> tuple[dict[str, Any], Tree]:
        """The answer for all, and of the clients here their own numbers and models."""
        scaling = scaling_of(found)
        place = {int(c): i for i, c in enumerate(found.clients)}
        here = [int(c) for c in own if int(c) in place]
        parts = {"score": made.table, "gain": made.gains, "half_width": made.half_widths, "mark": made.marks}
        clients = {
            str(federation.clients[c]): {
                m: {k: _plain(part.loc[m, str(federation.clients[c])]) for k, part in parts.items()}
                for m in made.methods
            }
            for c in here
        }
        told = {
            "recommendation": made.recommendation, "sure": made.sure, "method": made.method, "metric": made.metric,
            "interval": [_plain(v) for v in made.interval], "about": _summary(made), "clients": clients,
            "left_out": [str(federation.clients[int(c)]) for c in own if int(c) not in place],
        }  # fmt: skip
        fit, at = found.final, [place[c] for c in here]
        models = np.stack([np.repeat(fit.together[None], len(at), 0), fit.shrunk[at], fit.groups[at]], 1)
        scale = np.concatenate([scaling.mean, scaling.inverse, scaling.y_mean, scaling.y_scale])
        tensors = {"models": models, "scaling": scale, "centre": found.shape.centre}
        return told, {k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in tensors.items()}

    def keep(
        self, told: dict[str, Any], tensors: Tree, job: Job, federation: Federation, own: Ints, folder: Path
    ) -> None:
        """A page with this site's numbers, and every model of its clients for the columns as the plan prepares them."""
        study: Study = job.algorithm
        models, scale, centre = (tensors[k].double().numpy() for k in ("models", "scaling", "centre"))
        columns = list(federation.columns or [f"x{j}" for j in range(federation.n_features)])
        p = len(columns)
        mean, inverse, y_mean, y_scale = scale[:p], scale[p : 2 * p], scale[2 * p], scale[2 * p + 1]
        kept: dict[str, Any] = {}
        for i, name in enumerate(told["clients"]):
            slope = models[i][:, 1:] * inverse * y_scale
            level = models[i][:, 0] * y_scale + y_mean - slope @ mean
            x, y = federation.train(next(c for c in federation.clients if str(c) == name))
            alone = study.own_model(x.double().numpy(), y.double().numpy(), centre)
            level, slope = (
                np.append(level, alone[0] - alone[1:] @ centre[:-1] + centre[-1]),
                np.vstack([slope, alone[1:]]),
            )
            kept[name] = {
                m: {"intercept": float(b), "coefficients": dict(zip(columns, map(float, s), strict=True))}
                for m, b, s in zip(("together", "shrunk", "groups", "alone"), level, slope, strict=True)
            }
        plan = (
            None if federation.preprocessing is None else json.loads(federation.preprocessing.to_json(orient="records"))
        )
        about = {"kind": federation.kind, "classes": federation.classes, "use": told["recommendation"], "columns": plan}
        write_text(folder / MODELS, json.dumps(about | {"clients": kept}, indent=1), private=True)
        write_text(folder / NUMBERS, json.dumps(told, indent=1), private=True)
        write_text(folder / PAGE, _page(told), private=True)


def _plain(value: Any) -> Any:
    return (
        None
        if isinstance(value, float) and not math.isfinite(value)
        else value
        if isinstance(value, str)
        else float(value)
    )


def _summary(made: Comparison) -> str:
    """The answer without other clients' names."""
    low, high = made.interval
    return (
        f"{made.recommendation}; {made.sure}. {made.method.capitalize()} against alone: mean gain in {made.metric} from "
        f"{number(low, '+')} to {number(high, '+')}, over {made.about['clients']} clients with {made.about['rows']} rows."
    )


def _page(told: Mapping[str, Any]) -> str:
    """A site's own page."""

    def shown(value: Any, sign: str = "") -> str:
        return "–" if value is None else number(value, sign)

    parts = []
    for client, methods in told["clients"].items():
        rows = "".join(
            f"<tr><td>{m}</td><td>{shown(v['score'])}</td><td>{shown(v['gain'], '+')} ± {shown(v['half_width'])}</td>"
            f"<td>{html.escape(str(v['mark']))}</td></tr>"
            for m, v in methods.items()
        )
        head = f"<tr><th>way</th><th>{html.escape(told['metric'])}</th><th>gain over alone</th><th></th></tr>"
        parts.append(f"<h2>{html.escape(client)}</h2><table>{head}{rows}</table>")
    parts += [f"<p>{html.escape(c)} has too few rows, or did not answer.</p>" for c in told["left_out"]]
    style = "body{font:16px/1.5 sans-serif;max-width:44rem;margin:2rem auto}"
    style += "td,th{padding:.2rem 1rem .2rem 0;text-align:left}"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Our study</title><style>{style}</style></head>'
        f"<body><h1>Should we learn together?</h1><p>{html.escape(told['about'])}</p>{''.join(parts)}"
        f"<p>The models of our clients are in {MODELS}. The lines of outgoing.jsonl, in the folder above, are "
        "all that left this site: sums over rows. Sums of squares of fewer rows than columns would nearly give rows away, "
        "so no sum is of fewer rows than the study's least number (two more than columns, unless its file says so).</p>"
        "</body></html>\n"
    )


# ---- the job ---------------------------------------------------------------------------------------------------------


def study_job(data: Mapping[str, Any], section: Mapping[str, Any], reading: Mapping[str, Any], **more: Any) -> Job:
    """The job of [data] and [compare]."""
    from coterie.comparison.exact.metrics import check_metric
    from coterie.comparison.methods import parse

    how = checked_sections({"compare": section}, StudyFile, StudyFile.model_fields, ("compare",)).compare
    kind = data.get("kind", "")
    if kind not in ("classification", "regression"):
        raise ConfigError(f'A study needs kind = "classification" or "regression" under [data]; got {kind!r}.')
    asked: Any = (kind == "classification", check_metric(kind, how.metric), 0, how.least)
    options = {"test_fraction": 0.0, "dtype": "float64", **data}
    named = [] if how.algorithms is None else [n for n in parse(how.algorithms) if n != "local"]
    if how.rounds is not None and not named:
        raise ConfigError("rounds under [compare] are those of algorithms to train. Also name algorithms.")
    study, ends = Study(*asked), Consortium(how.seeds, tuple(named), how.rounds)  # type: Any, Any
    if more.get("secure") is not None:
        if named:
            raise ConfigError(
                "With [secure] a study asks for sums over all clients alone; algorithms under [compare] need more. "
                "Take one of the two out."
            )
        refuse_unfit(study.metric)
        study, ends = SummedStudy(*asked), SummedConsortium(how.seeds)
    return Job(study, rows_task, options, 1, 0, reading=dict(reading), ends=ends, **more)


def what_leaves(job: Job, table: Path, client: str | None) -> list[str]:
    """Sentences on what a study would tell of a site's table."""
    rows = Site(job, table, table, client).table_here()
    told, least = rows.facts(private=False), job.algorithm.least
    sizes = dict(zip(told["clients"], told["sizes"], strict=True))
    lines = ["Before the study, so that all sites prepare columns alike:"]
    lines.append(f"  names and numbers of rows of clients: {', '.join(f'{c} ({n})' for c, n in sizes.items())}")
    if told["labels"] is not None:
        lines.append(f"  labels of the target: {', '.join(map(str, told['labels']))}")
    for name, column in told["columns"].items():
        if column["kind"] == "category":
            lines.append(
                f"  {name}: the count of each category: {json.dumps(column['counts'])}, others {column['rare']}"
            )
        else:
            median = ", counts by which the common median is found" if column["holes"] else ""
            lines.append(
                f"  {name}: {column['present']} values, {column['missing']} missing; mean and deviation{median}"
            )
    p = len(told["columns"]) + sum(len(c.get("counts", [None])) - 1 for c in told["columns"].values())
    fewest = job.algorithm.fewest(p)
    lines.append(f"In the study (about {p} prepared columns; no sum is of fewer than {fewest} rows):")
    if job.secure is not None:
        lines.append(
            f"  the server sees only sums over at least {job.secure.threshold} sites; each line is this site's part of one"
        )
    for name, n in sizes.items():
        cells = min(10, n // fewest)
        if not cells:
            lines.append(f"  {name}: nothing, for it has {n} rows")
        else:
            lines.append(
                f"  {name}: sums, and sums of squares and products, of columns and target in {cells} folds of "
                f"{n // cells} rows or more, dealt anew in every repeat"
            )
    if job.algorithm.classification:
        lines.append(
            "  per question (about 20): loss, gradient and curvature of given models, summed over the same folds"
        )
    lines.append("  per way to learn: mean losses, their products within a client, and sums per fold")
    if job.ends.algorithms:
        lines.append(
            f"In the training of {', '.join(('local', *job.ends.algorithms))}, of every run and setting tried:"
        )
        lines.append(
            "  what the algorithm sends in a deployment, such as a model after local steps (local sends nothing)"
        )
        lines.append("  counts of classes, or number, mean and scatter of the target, of the training rows")
        lines.append(
            "  per client: its group, and mean losses on held-out quarters of its rows; at the end sums of these"
        )
    lines.append("The models of clients' own rows, and all rows, stay. Every answer is logged in outgoing.jsonl.")
    lines += [] if least is None else [f"The study's file sets least = {least}."]
    return lines


# ---- a trial on one machine ------------------------------------------------------------------------------------------


class Here:
    """Nodes whose sites are in this process; every message is bytes, as on a network."""

    def __init__(self, sites: dict[int, Site]) -> None:
        self.sites = sites

    def connected(self) -> list[int]:
        return sorted(self.sites)

    def exchange(
        self, messages: Mapping[int, bytes], timeout: float | None = None, soon: bool = False
    ) -> dict[int, bytes | Failure]:
        answers: dict[int, bytes | Failure] = {}
        for node, message in messages.items():
            try:
                answers[node] = self.sites[node].answer(message)
            except CoterieError as error:
                answers[node] = Failure(str(error))
        return answers


@dataclass(frozen=True)
class _Kept(Consortium):
    """The comparison itself, instead of pages."""

    made: list[Comparison] = field(default_factory=list)

    def conclude(self, made: Comparison, folder: Path) -> dict[str, Any]:
        self.made.append(made)
        return {}

    def keep(self, *_: Any) -> None:
        """Nothing is kept of a trial."""


def files_of(places: list[Path]) -> list[Path]:
    """The files of sites: those named, or those of a folder."""
    if len(places) == 1 and places[0].is_dir():
        places = sorted(p for p in places[0].iterdir() if p.suffix in (".csv", ".parquet", ".xlsx"))
    if len(places) < 2:
        raise ConfigError(f"A study needs the files of 2 sites or more; got {len(places)}. Name them, or their folder.")
    return places


def tried_on(
    tables: Mapping[str, pd.DataFrame], source: Any, whole: Federation, options: Mapping[str, Any], chosen: Mapping[str, Any]
) -> Comparison:  # fmt: skip
    """`coterie compare … --sites`; columns and kind are named as one would name them in a study's file."""
    if chosen.get("privacy") is not None or chosen["family"] == "trees":
        raise ConfigError("Sites compare linear models; trees and budgets do not go with --sites.")
    used = whole.notes.used if whole.notes is not None else list(whole.columns or ())
    data: dict[str, Any] = {"client": source.client, "target": source.target, "features": used, "kind": whole.kind}
    data |= {
        k: getattr(source, k)
        for k in ("drop_missing", "min_rows", "same_clients")
        if getattr(source, k) not in (False, 1)
    }
    if whole.classes is not None and source.classes is not None:
        data["classes"] = list(whole.classes)
    data["one_class"] = options["one_class"]
    section = {k: chosen[k] for k in ("metric", "seeds", "least", "algorithms", "rounds") if chosen[k] is not None}
    return tried(study_job(data, section, {}), tables, source.client)


def tried(job: Job, tables: Mapping[str, pd.DataFrame], client: str) -> Comparison:
    """A study whose sites, one per table, are all here. A table without the column `client` is one client."""
    made: list[Comparison] = []
    ends = job.ends
    job = replace(job, ends=_Kept(ends.seeds, ends.algorithms, ends.rounds, made), least=1)
    with tempfile.TemporaryDirectory() as folder:
        sites = {
            i: Site(job, table, Path(folder) / f"site{i}", None if client in table else name)
            for i, (name, table) in enumerate(tables.items())
        }
        serve_study(job, Here(sites), Path(folder) / "server", sites=len(sites), tell=lambda line: None)
    return made[0]


def together(tables: Mapping[str, pd.DataFrame], client: str) -> pd.DataFrame:
    """All rows, as a trial may see them to find out which columns there are."""
    whole = [t if client in t else t.assign(**{client: name}) for name, t in tables.items()]
    columns = set(whole[0])
    for name, table in zip(tables, whole, strict=True):
        if set(table) != columns:
            odd = sorted(map(str, columns ^ set(table)))
            raise DataError(
                f"Sites have the same columns; {name} and the first differ in {', '.join(odd[:5])}. Rename them."
            )
    return pd.concat(whole, ignore_index=True)
