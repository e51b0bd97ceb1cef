"""What a server can learn of columns before a run: one agreement, and nothing beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conformance_settings import configured
from together import SIZES, InProcess, deployed, job, split, table

import coterie as ct
from coterie.data.digits import LEVELS, sortable
from coterie.flower import Site, wire
from coterie.flower.site_tables import LEAST


def question(site: Site, level: int, prefixes: list[int], column: str = "a") -> Any:
    told = site.answer(wire.pack({"do": "digits", "level": level, "prefixes": {column: prefixes}}))
    return wire.unpack(told)[0]["digits"][column]


def test_chosen_prefixes_do_not_recover_a_column(tmp_path: Path) -> None:
    """A server that follows as many prefixes as it may learns no value of fewer than five rows."""
    rows = table(SIZES).assign(a=np.random.default_rng(3).normal(size=sum(SIZES)))
    site = Site(job(configured("fedavg"), least=LEAST), rows, tmp_path)
    heads, found = [0], 0
    for level in range(LEVELS):
        if level:
            with pytest.raises(ct.errors.CoterieError, match=r"one or two whole numbers|one agreement"):
                question(site, level, sorted({int(b) >> 8 * (LEVELS - level) for b in sortable(rows["a"].to_numpy())}))
        counts = question(site, level, heads)
        with pytest.raises(ct.errors.CoterieError, match="one agreement"):
            question(site, level, [heads[0] ^ 2])
        assert question(Site(site.job, rows, tmp_path), level, heads) == counts  # a server that was started again
        best = sorted(
            ((n, h << 8 | b) for h, row in zip(heads, counts, strict=True) for b, n in enumerate(row)), reverse=True
        )
        heads, found = [h for _, h in best[:2]], max(n for n, _ in best)
    assert found == 0  # long before the last byte


def test_prefixes_continue_those_before(tmp_path: Path) -> None:
    """Else a server could ask in every level for others, and follow sixteen values instead of two."""
    site = Site(job(configured("fedavg")), table(SIZES), tmp_path)
    refused = pytest.raises(ct.errors.CoterieError, match="one agreement")
    with refused:
        question(site, 1, [0])  # the first level was not asked for
    question(site, 0, [0])
    with refused:
        question(site, 1, [256])
    question(site, 1, [64, 191])
    for wrong in (65 << 8, 63 << 8 | 255, 64):
        with refused:
            question(site, 2, [64 << 8, wrong])
    question(site, 2, [64 << 8 | 7, 191 << 8])


def test_only_features_and_only_one_fill(tmp_path: Path) -> None:
    site = Site(job(configured("fedavg")), table(SIZES), tmp_path)
    for question_ in (
        {"do": "digits", "level": 0, "prefixes": {"label": [0]}},
        {"do": "spread", "fills": {"who": 0.0}},
    ):
        with pytest.raises(ct.errors.CoterieError, match="no feature"):
            site.answer(wire.pack(question_))
    with pytest.raises(ct.errors.CoterieError, match="one agreement"):  # a fill that nobody agreed on
        site.answer(wire.pack({"do": "spread", "fills": {"a": 3.0}}))
    site.answer(wire.pack({"do": "spread", "fills": {"b": 0.0}}))


def test_an_agreement_of_least_counts_trains(tmp_path: Path) -> None:
    work = job(configured("fedavg"), rounds=2, least=LEAST)
    nodes = InProcess(work, split(table(SIZES), 3), tmp_path)
    assert deployed(work, None, tmp_path, nodes=nodes)[2]["finished"]
