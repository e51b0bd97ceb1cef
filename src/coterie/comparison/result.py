"""Comparison: several ways to learn on the same clients, the gain per client, and a recommendation.

Only `coalition` trains; everything else reads stored results."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from coterie.base.annotations import guarded
from coterie.base.disk import write_text
from coterie.base.text import suggest
from coterie.comparison import files, verdict
from coterie.comparison.deploy.choice import Deploy
from coterie.comparison.deploy.model import TableModel
from coterie.comparison.exact.decision import Decision
from coterie.comparison.exact.distinguish import distinguish
from coterie.comparison.exact.units import natural, unit
from coterie.errors import ConfigError
from coterie.evidence.gains import MARKS
from coterie.evidence.rule import Verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from coterie.evidence.participation import Coalition, Participation
    from coterie.privacy.receipt import Receipt
    from coterie.training.result import Result

EXACT = ("alone", "together", "shrunk", "groups")


@dataclass(frozen=True)
class Proven:
    """What is proven about learning together: the recommended way, how sure it is, and the interval of the mean gain of
    ``method`` over alone."""

    recommendation: str
    sure: str
    method: str
    interval: tuple[float, float]


@dataclass(frozen=True, eq=False)
class Comparison:
    """`table`, `gains`, `errors` and `marks` have a row per method and a column per client.

    Exact methods (alone, together, shrunk, groups) are compared with alone on the same folds, learning algorithms with
    their own tuned `local` on the same test rows."""

    table: pd.DataFrame
    """The metric, in its own units."""
    gains: pd.DataFrame
    """Each client's gain over being alone; positive is better, whatever the metric."""
    errors: pd.DataFrame
    """Standard errors of the gains."""
    half_widths: pd.DataFrame
    """Half the width of every gain's interval, corrected for looking at many clients."""
    marks: pd.DataFrame
    """"gains", "loses", "no clear change" or "no score"; corrected for looking at many clients."""
    metric: str
    scores: pd.DataFrame
    """Every metric by method, seed and client."""
    curves: pd.DataFrame
    """The history of every learning algorithm and seed; empty where nothing was trained."""
    settings: pd.DataFrame
    """The settings of each method, by method and seed."""
    clusters: pd.DataFrame
    """The groups each method found (first seed), a row per method."""
    overview: pd.DataFrame
    """One row per client: rows and targets."""
    about: dict[str, Any]
    results: dict[str, tuple[Result, ...]] = field(default_factory=dict)
    decision: Decision | None = None
    judgement: Verdict | None = None
    failed: dict[str, str] = field(default_factory=dict)
    """Methods that failed, and why."""
    warnings: tuple[str, ...] = ()
    regrouped: dict[str, pd.DataFrame] = field(default_factory=dict)
    """The groups of repeated fits, a row per fit and a column per client: per fold for exact groups, else per seed."""
    intervals: pd.DataFrame = field(default_factory=pd.DataFrame)
    """The bounds of every method's mean gain, a row per method: `low`, `high`."""
    deploy: Deploy | None = None
    """What to deploy: the model with the lowest expected loss, whatever is proven. Tables only."""
    model: TableModel | None = None
    """The model to deploy: predicts rows of raw columns, with intervals, and can be saved. Tables only."""
    positions: pd.DataFrame | None = None
    """The places of clients (two columns, across and up), if the data have them; they are drawn and never learned from."""
    audited: Participation | None = None
    """Who would stay with the best trained method, where clients told it; else it is found from rows."""
    released: Result | None = None
    """The private candidate trained once with exact noise: the only thing here that a receipt covers."""

    receipts: dict[str, Receipt] = field(default_factory=dict)
    """Per client, where rows are protected: the receipt of all that it told. Each belongs to that client."""

    @property
    def receipt(self) -> Receipt | None:
        """The receipt of the private candidate's release, or that of the first client (of the first that is not valid) where
        rows are protected: its promises and their limits; None without a budget."""
        if self.released is not None:
            return self.released.receipt
        return min(self.receipts.values(), key=lambda receipt: receipt.valid, default=None)

    @property
    def covered(self) -> tuple[str, str]:
        """What the receipt covers, and what it does not cover."""
        from coterie.comparison.private import COVERED, NOT_COVERED, OF_ROWS

        return (COVERED, NOT_COVERED) if self.released is not None else OF_ROWS

    @property
    def methods(self) -> list[str]:
        return [str(m) for m in self.table.index]

    @property
    def learned(self) -> list[str]:
        """The learning algorithms that were trained, `local` among them."""
        return [m for m in self.methods if m in self.results]

    @property
    def judged(self) -> bool:
        """Whether there is a recommendation; saved runs side by side have none."""
        return self._judge is not None

    @property
    def recommendation(self) -> str:
        """ "alone", "together", "shrunk" or "groups"."""
        return str(self._judge.recommendation)

    @property
    def sure(self) -> str:
        """ "clear", "borderline", "leaning", or "nothing" where no method beats the overall average."""
        return str(self._judge.sure if self.decision is not None else self._judge.shown)

    @property
    def method(self) -> str:
        """The method that the recommendation is about: the recommended one or, where that is alone, its best rival."""
        return str(self._judge.method)

    @property
    def proven(self) -> Proven:
        """What is shown about collaboration, with today's caution: a claim, not what to deploy."""
        return Proven(self.recommendation, self.sure, self.method, self.interval)

    @property
    def interval(self) -> tuple[float, float]:
        """Bounds of the mean gain of `method` over alone, in the metric's units."""
        if self.decision is not None:
            if self.decision.evaluation is None:
                return 0.0, 0.0
            scale = unit(self.decision) * float(np.nanmean(self.decision.losses.loc["alone"].to_numpy()))
            low, high = self.decision.interval
            return low * scale, high * scale
        return self.bounds(self.method)

    @property
    def constant(self) -> float:
        """The mean score over clients of the overall average, which every method must beat."""
        if self.decision is None:
            loss = float("nan") if self.judgement is None else self.judgement.losses["constant"]
            return loss if self.about["lower_is_better"] else 1 - loss
        return float(natural(self.decision, self.decision.losses).T["constant"].mean())

    @property
    def _judge(self) -> Any:
        return self.judgement if self.decision is None else self.decision

    def _known(self, method: str) -> str:
        if method not in self.table.index:
            raise ConfigError(f"There is no method {method!r}. {suggest(method, self.table.index)}")
        return method

    @guarded
    def baseline(self, method: str) -> str:
        """The method that a method's gains are measured against."""
        return "local" if method in self.results else "alone"

    @guarded
    def who(self, method: str, mark: str) -> list[str]:
        """The clients with a mark under a method."""
        return [str(c) for c, m in self.marks.loc[self._known(method)].items() if m == mark]

    @guarded
    def cell(self, method: str, client: str) -> tuple[float, float, str]:
        """Score, gain and mark."""
        if client not in self.table.columns:
            raise ConfigError(f"There is no client {client!r}. {suggest(client, self.table.columns)}")
        where: Any = (self._known(method), client)
        return float(self.table.loc[where]), float(self.gains.loc[where]), str(self.marks.loc[where])

    @property
    def best(self) -> str | None:
        """The trained way to learn together with the largest mean gain."""
        others = [m for m in self.learned if m != "local"]
        return str(self.gains.loc[others].mean(axis=1).fillna(-np.inf).idxmax()) if others else None

    @property
    def groups(self) -> pd.Series[Any] | None:
        """The group of every client: of the exact group model, or of the judged method; None where there is one group."""
        if not self.judged:
            return None
        name = "groups" if self.decision is not None else self.method
        if name not in self.clusters.index or self.clusters.loc[name].nunique() < 2:
            return None
        return self.clusters.T[name].astype(int).rename("group")

    @property
    def grouped(self) -> dict[str, pd.Series[Any]]:
        """The groups of every method that found more than one and fewer than there are clients; `groups` comes first."""
        found = {} if self.groups is None else {"groups" if self.decision is not None else self.method: self.groups}
        for method in self.learned if self.results else self.methods:
            labels = self.clusters.T[method].astype(int).rename("group")
            if 1 < labels.nunique() < len(labels) and method not in ("alone", "shrunk", "local"):
                found.setdefault(method, labels)
        return found

    def distinguish(self) -> pd.DataFrame:
        """The columns and coefficients in which the exact groups differ, the largest differences first."""
        if self.decision is None or self.groups is None:
            raise ConfigError("There are no exact groups to tell apart; compare a table without a task.")
        return distinguish(self.decision)

    @cached_property
    def _audit(self) -> Participation | None:
        if self.best is None or self.audited is not None:
            return self.audited
        from coterie.training.coalition import audit

        return audit(self.results[self.best])

    @guarded
    def joined(self, extra: Comparison) -> Comparison:
        """The exact comparison with learning algorithms as further rows; its recommendation stays."""
        names = ("table", "gains", "errors", "half_widths", "marks", "clusters", "intervals")
        rows = {n: pd.concat([getattr(self, n), getattr(extra, n)]).rename_axis("method") for n in names}
        both = {n: pd.concat([getattr(self, n), getattr(extra, n)], ignore_index=True) for n in ("scores", "settings")}
        return replace(
            self,
            **rows,
            **both,
            curves=extra.curves,
            overview=extra.overview,
            about={**extra.about, **self.about, "model": extra.about["model"]}
            | {"new_split_each_seed": extra.about["new_split_each_seed"]},
            results=extra.results,
            judgement=extra.judgement,
            failed=extra.failed,
            warnings=(*self.warnings, *extra.warnings),
            regrouped=self.regrouped | extra.regrouped,
        )

    def participation(self) -> Participation | None:
        """The clients that would stay with the best trained method; None when nothing was trained."""
        return self._audit

    @guarded
    def coalition(self, max_rounds: int = 10) -> Coalition | None:
        """The clients that remain with the best trained method after the others have left, step by step.

        It trains again, so no other function calls it. Pass its result on to `save`, `write_report` and
        `comparison_tables`. Across sites nothing is trained again, and the answer is None."""
        return None if self._audit is None or self.audited is not None else self._audit.coalition(max_rounds)

    @guarded
    def verdict(self, coalition: Coalition | None = None) -> str:
        """The recommendation, its certainty and the clients that gain, in plain words.

        A `coalition()` adds the clients that would stay."""
        stay = "" if coalition is None else f" Would they stay? {coalition.verdict()}"
        return verdict.words(self) + stay

    def summary(self) -> pd.DataFrame:
        """A row per method: mean score, mean gain with its interval, worst gain, and how many clients gain or lose."""
        held = self.marks.to_numpy()
        marks = {f"clients: {m}": (held == m).sum(axis=1) for m in MARKS}
        bounds = pd.DataFrame({m: self.bounds(m) for m in self.methods}, index=["low", "high"]).T
        return pd.DataFrame(
            {
                f"mean {self.metric}": self.table.mean(axis=1),
                "mean gain": self.gains.mean(axis=1),
                "low": bounds["low"],
                "high": bounds["high"],
                "worst gain": self.gains.min(axis=1),
                **marks,
            }
        )

    @guarded
    def bounds(self, method: str) -> tuple[float, float]:
        """The interval of a method's mean gain over its baseline, in the metric's units; NaN where it is not known."""
        found = self.intervals.T[self._known(method)] if len(self.intervals) else {"low": np.nan, "high": np.nan}
        return float(found["low"]), float(found["high"])

    def to_json(self) -> dict[str, Any]:
        """Everything that is shown, as plain values."""
        found = self.groups
        return {
            "recommendation": self.recommendation,
            "sure": self.sure,
            "method": self.method,
            "metric": self.metric,
            "lower_is_better": self.about["lower_is_better"],
            "interval": list(self.interval),
            "summary": files.plain(self.summary()),
            "table": files.plain(self.table),
            "gains": files.plain(self.gains),
            "errors": files.plain(self.errors),
            "half_widths": files.plain(self.half_widths),
            "marks": files.plain(self.marks),
            "groups": None if found is None else {str(c): int(g) for c, g in found.items()},
            "gainers": self._gainers(),
            "continuum": None if self.decision is None else self.decision.against_continuum(),
            "failed": dict(self.failed),
            "warnings": list(self.warnings),
            "settings": self.settings.to_dict("records"),
            "about": self.about,
            "verdict": self.verdict(),
            "deploy": None if self.deploy is None else self.deploy.to_json(),
            "receipt": None if self.receipt is None else json.loads(self.receipt.to_json()),
        }

    def _gainers(self) -> dict[str, Any] | None:
        """Per exact way of sharing, the share of clients that gain with its interval, and shrunken gains."""
        if self.decision is None or self.decision.evaluation is None:
            return None
        scale, found = unit(self.decision), {}
        for name in EXACT[1:]:
            one = self.decision.gainers(name)
            if one is not None:
                gains = zip(self.gains.columns, one.gains, strict=True)
                found[name] = one.to_json() | {
                    "gains": {str(c): None if np.isnan(g) else float(g * scale) for c, g in gains}
                }
        return found

    @guarded
    def save(self, folder: str | Path, coalition: Coalition | None = None) -> Path:
        """Write table.csv, gains.csv (with errors and marks, a row per method and client), long tables as Parquet,
        verdict.txt and comparison.json; also coalition.csv with the steps of a `coalition()`, when it is passed. The
        folder model holds the model to deploy, the folder private a private candidate (the only part that may be given
        out). A folder that already holds files with these names, not written by a comparison, is refused."""
        folder = Path(folder)
        files.save(self, folder, coalition)
        if self.model is not None:
            self.model.save(folder / "model")
        if self.released is not None:
            self._save_released(folder / "private")
        return folder

    # ---- the report's figures in matplotlib; `ax.figure.savefig("x.pdf")` writes vectors -------------------------------

    @guarded
    def plot_means(self, ax: Axes | None = None) -> Axes:
        """Mean gains of all methods with their intervals."""
        from coterie.comparison import plots

        return plots.plot_means(self, ax)

    @guarded
    def plot_gains(self, method: str | None = None, ax: Axes | None = None) -> Axes:
        """Every client's gain with its interval; `method` is the judged one by default."""
        from coterie.comparison import plots

        return plots.plot_gains(self, method, ax)

    @guarded
    def plot_map(self, positions: pd.DataFrame | None = None, ax: Axes | None = None) -> Axes:
        """A map of clients coloured by group, by their places or by their models."""
        from coterie.comparison import plots

        return plots.plot_map(self, positions, ax)

    @guarded
    def plot_likeness(self, ax: Axes | None = None) -> Axes:
        """How much clients' models differ, ordered by group."""
        from coterie.comparison import plots

        return plots.plot_likeness(self, ax)

    @guarded
    def plot_apart(self, what: str = "effect", ax: Axes | None = None) -> Axes:
        """The differences between groups, by "column", "effect" or "target"."""
        from coterie.comparison import plots

        return plots.plot_apart(self, what, ax=ax)

    @guarded
    def plot_curves(self, column: str = "loss", ax: Axes | None = None) -> Axes:
        """A column of the histories over the rounds."""
        from coterie.comparison import plots

        return plots.plot_curves(self, column, ax)

    @guarded
    def plot_bytes(self, ax: Axes | None = None) -> Axes:
        """The bytes that a whole run sends."""
        from coterie.comparison import plots

        return plots.plot_bytes(self, ax)

    def _save_released(self, folder: Path) -> None:
        """Write the server's tensors, which the receipt covers, with receipt.json and receipt.txt, and nothing else."""
        from torch import Tensor

        from coterie.base.tree import flatten
        from coterie.training.checkpoint import write

        assert self.released is not None and self.receipt is not None  # noqa: PT018
        tensors = {k: t for k, t in flatten(vars(self.released.state)).items() if isinstance(t, Tensor)}
        write(folder / "model.safetensors", tensors, {})
        write_text(folder / "receipt.json", self.receipt.to_json())
        write_text(folder / "receipt.txt", self.receipt.to_text() + "\n")
