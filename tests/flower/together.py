"""Sites in this process: the real server and sites, with messages as bytes, and no network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import coterie as ct
from coterie.flower import Failure, Job, Site

DATA: dict[str, Any] = {
    "client": "who", "target": "label", "features": ["a", "b", "c", "d"], "kind": "classification", "cluster": "group",
    "one_class": "allow",
}  # fmt: skip


def table(sizes: tuple[int, ...], seed: int = 0) -> pd.DataFrame:
    """Clients of two kinds; some values of the first column are missing."""
    rng = np.random.default_rng(seed)
    parts, truths = [], rng.normal(size=(2, 4, 3))
    for i, n in enumerate(sizes):
        x = rng.normal(size=(n, 4)) + 0.3 * i
        part = pd.DataFrame(x, columns=list("abcd")).assign(
            label=np.array(["no", "perhaps", "yes"])[np.argmax(x @ truths[i % 2] + rng.gumbel(size=(n, 3)), 1)],
            who=f"client {i:02d}",
            group="odd" if i % 2 else "even",
        )
        part.loc[rng.random(n) < 0.1, "a"] = np.nan
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


def split(rows: pd.DataFrame, sites: int) -> list[pd.DataFrame]:
    """The rows of every site: clients are dealt out one after another."""
    names = sorted(rows["who"].unique())
    return [rows[rows["who"].isin(names[i::sites])].reset_index(drop=True) for i in range(sites)]


class InProcess:
    """Nodes whose sites are objects here. `change` may do something to the answer of a site; messages are kept."""

    def __init__(self, job: Job, tables: list[Any], folder: Path) -> None:
        self.job, self.tables, self.folder = job, tables, folder
        self.sites = {100 + i: Site(job, t, folder / f"site{i}") for i, t in enumerate(tables)}
        self.change: Callable[[int, dict[str, Any], bytes | Failure], bytes | Failure] | None = None
        self.sent: list[tuple[int, bytes]] = []
        self.got: list[tuple[int, bytes]] = []

    def connected(self) -> list[int]:
        return sorted(self.sites)

    def exchange(self, messages: Mapping[int, bytes]) -> dict[int, bytes | Failure]:
        from coterie.flower import wire

        answers: dict[int, bytes | Failure] = {}
        for node, message in messages.items():
            self.sent.append((node, message))
            try:
                answer: bytes | Failure = self.sites[node].answer(message)
                self.got.append((node, answer))  # type: ignore[arg-type]
            except ct.CoterieError as error:
                answer = Failure(str(error))
            if self.change is not None:
                answer = self.change(node, wire.unpack(message)[0], answer)
            answers[node] = answer
        return answers

    def restart(self, node: int) -> None:
        """The site comes back as another node, with nothing but its folder."""
        old = self.sites.pop(node)
        self.sites[max(self.sites, default=100) + 50] = Site(self.job, old.table, old.folder)
