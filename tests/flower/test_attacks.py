"""Attacks on a deployment without a budget: what a server, a site or another user of the machine may try."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from conformance_settings import configured
from together import SIZES, InProcess, deployed, job, split, table

import coterie as ct
from coterie.base.tree import flatten
from coterie.flower import Site, guard, wire
from coterie.flower.meeting import joining
from coterie.flower.site_tables import LEAST

NUMBERS = [
    {"source": c, "column": c, "kind": "numeric", "category": None, "fill": 0.0, "mean": 0.0, "scale": 1.0, "note": ""}
    for c in "abcd"
]


def begin(site: Site, **change: Any) -> bytes:
    clients = wire.unpack(site.answer(wire.pack(joining(site.job))))[0]["clients"]
    head = {
        "do": "begin", "run": "r", "ticket": "t", "n_clients": len(clients),
        "agreement": {"plan": NUMBERS, "classes": ["no", "perhaps", "yes"]},
        "places": {c: i for i, c in enumerate(clients)},
    }  # fmt: skip
    return site.answer(wire.pack(head | change))


@pytest.mark.parametrize(
    "agreement",
    [
        {"plan": NUMBERS, "classes": ["no", "yes"]},
        {"plan": NUMBERS, "classes": None},
        {"plan": [NUMBERS[0] | {"source": "label", "column": "label"}], "classes": ["no", "perhaps", "yes"]},
    ],
)
def test_an_agreement_of_the_servers_choice_quotes_no_cell(
    agreement: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site = Site(job(configured("fedavg")), table(SIZES), tmp_path)
    with pytest.raises(ct.errors.CoterieError) as told:
        begin(site, agreement=agreement)
    assert not any(cell in str(told.value) for cell in ("'no'", "'yes'", "'perhaps'", "client 0"))
    assert "the site's log says why" not in str(told.value) or caplog.text


def test_so_many_clients_that_their_names_fill_the_memory_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ct.errors.CoterieError, match=r"'n_clients' .* from 1 to 1000000"):
        begin(Site(job(configured("fedavg")), table(SIZES), tmp_path), n_clients=10**6 + 1)


def test_sums_that_overflow_together_are_their_sites_failure(tmp_path: Path) -> None:
    """Each is a number, and so is its mean; two of them are infinite."""
    work = job(configured("fedavg"), rounds=3)
    nodes = InProcess(work, split(table(SIZES), 3), tmp_path)

    def change(node: int, asked: dict[str, Any], answer: Any) -> Any:
        if asked["do"] != "ask" or asked["round"] != 1 or node == 100:
            return answer
        head, tree = wire.unpack(answer)
        tree["weights"] = torch.full_like(tree["weights"], 1.7e308)
        tree["sums"]["model"] = {k: torch.full_like(t, 1.7e308) for k, t in tree["sums"]["model"].items()}
        return wire.pack(head, tree)

    nodes.change = change
    run, _, told = deployed(work, None, tmp_path, nodes=nodes)
    assert told["finished"]
    assert all(bool(t.isfinite().all()) for t in flatten(run.state.model).values())
    assert (tmp_path / "server" / "events.jsonl").read_text().count("must stay numbers") == 2


def test_a_log_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    target = tmp_path / "elsewhere"
    (tmp_path / "server" / "events.jsonl").symlink_to(target)
    with pytest.raises(ct.errors.ConfigError, match="symbolic link"):
        deployed(job(configured("fedavg"), rounds=1), table(SIZES), tmp_path)
    assert not os.path.lexists(target)


def test_a_class_that_few_rows_have_is_named_by_the_user_or_not_at_all(tmp_path: Path) -> None:
    rows = table(SIZES)
    rows.loc[[3, 50], "label"] = "the only two"
    work = job(configured("fedavg"), rounds=1, least=LEAST)
    nodes = InProcess(work, split(rows, 3), tmp_path)
    with pytest.raises(
        ct.errors.EngineError, match="names of classes with fewer than 5 rows at a site do not leave it"
    ):
        deployed(work, None, tmp_path, nodes=nodes)
    assert not any(b"the only two" in message for _, message in (*nodes.sent, *nodes.got))


def test_a_round_that_the_run_does_not_have_is_refused(tmp_path: Path) -> None:
    """A result has a row per round: a billion of them would fill memory and disk."""
    work = job(configured("fedavg"), rounds=2)
    _, nodes, _ = deployed(work, table(SIZES), tmp_path)
    last = {h["do"]: (h, tree) for h, tree in (wire.unpack(m) for node, m in nodes.sent if node == 101)}
    for kind, wrong in (("ask", 2), ("ask", 10**9), ("finish", 3), ("finish", 10**9)):
        head, tree = last[kind]
        with pytest.raises(ct.errors.CoterieError, match="This run has 2 rounds"):
            nodes.sites[101].answer(wire.pack(head | {"number": 2**70, "round": wrong}, tree))
    nodes.sites[101].answer(wire.pack(last["finish"][0] | {"number": 2**70}, last["finish"][1]))


def test_runs_without_end_do_not_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "MOST_RUNS", 3)
    site = Site(job(configured("fedavg")), table(SIZES), tmp_path)
    for i in range(3):
        begin(site, run=f"r{i}")
    with pytest.raises(ct.errors.CoterieError, match="folder holds 3 runs"):
        begin(site, run="r3")
    assert not (tmp_path / "r3").exists()


@pytest.mark.parametrize(
    "message",
    [{"do": "digits", "level": 0, "prefixes": {"d": [0]}}, {"do": "spread", "fills": {"d": 0.0}}],
)
@pytest.mark.parametrize("cells", [("secret", "word"), ("17", "4"), (True, False)])
def test_numbers_of_a_column_of_categories_are_not_told(
    message: dict[str, Any], cells: tuple[Any, Any], tmp_path: Path
) -> None:
    rows = table(SIZES).astype({"d": object})
    rows["d"] = [cells[i % 2] for i in range(len(rows))]
    with pytest.raises(ct.errors.CoterieError, match="holds categories at this site") as told:
        Site(job(configured("fedavg"), least=LEAST), rows, tmp_path).answer(wire.pack(message))
    assert not any(repr(cell) in str(told.value) for cell in cells)


@pytest.mark.parametrize("whose", ["site0/outgoing.jsonl", "server/events.jsonl"])
def test_a_log_that_cannot_grow_ends_in_one_sentence_and_nothing_leaves(whose: str, tmp_path: Path) -> None:
    """A disk that is full for the log alone: as large as files may be, it takes no line more."""
    size = 1 << 22
    work = job(configured("fedavg"), rounds=1)
    nodes = InProcess(work, split(table(SIZES), 3), tmp_path)
    log = tmp_path / whose
    log.parent.mkdir()
    log.write_bytes(b" " * size)
    nodes.change = lambda node, asked, answer: b"none" if node == 101 and asked["do"] == "ask" else answer
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    try:
        with pytest.raises(ct.errors.CoterieError, match=r"jsonl cannot be written: File too large"):
            deployed(work, None, tmp_path, nodes=nodes)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        signal.signal(signal.SIGXFSZ, before)
    assert log.stat().st_size == size
    assert not [node for node, _ in nodes.got if f"site{node - 100}" == log.parent.name]
