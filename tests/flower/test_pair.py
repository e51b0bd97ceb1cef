"""One server and one site for every algorithm: the numbers of `fit`, whatever happens on the way."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conformance_settings import NAMES, configured
from faults import BAD
from together import SIZES, InProcess, both, deployed, difference, job, local, split, table

import coterie as ct
from coterie.base.tree import flatten
from coterie.exchange.channels.base import Channel, Where
from coterie.exchange.messages import Ask
from coterie.flower import Failure, wire
from coterie.training.run import Run

TOLERANCE = 2e-5


def few(names: Any, quick: tuple[str, ...]) -> list[Any]:
    """All of them with `make test-flower`, some in every run of the tests."""
    return [pytest.param(n, marks=[] if n in quick else [pytest.mark.flower]) for n in names]


@pytest.mark.parametrize("name", few(NAMES, ("fedavg", "ditto", "cfl")))
def test_the_numbers_of_fit(name: str, tmp_path: Path) -> None:
    run, far, told = both(name, tmp_path)
    assert far <= TOLERANCE
    assert told["finished"]
    for f in dataclasses.fields(run.state):  # what belongs to single clients says so
        for t in flatten(getattr(run.state, f.name), f.name).values():
            if isinstance(t, torch.Tensor) and t.dim() and len(t) == len(SIZES):
                assert "rows" in f.metadata, f.name


# ---- losses and restarts ---------------------------------------------------------------------------------------------

STATEFUL = ("ditto", "scaffold", "ifca")  # states kept by clients; several asks a round


class LostClients(Channel):
    """The same clients lost in the same rounds, in one process."""

    def __init__(self, lost: dict[int, list[int]]) -> None:
        self.lost = lost

    def __repr__(self) -> str:
        return f"LostClients({self.lost})"

    def ask(self, ask: Ask, where: Where) -> Ask:
        return ask.only(~np.isin(ask.clients, self.lost.get(where.round, [])))


@pytest.mark.parametrize("name", few(STATEFUL, ("ditto",)))
def test_a_site_that_does_not_answer_is_lost_and_nothing_it_computed_counts(name: str, tmp_path: Path) -> None:
    """Site 2 works in round 2 and its answers are lost on the way; it then comes back as another node."""
    rows, work = table(SIZES), job(configured(name), rounds=4)
    nodes = InProcess(work, split(rows, 3), tmp_path)

    def change(node: int, asked: dict[str, Any], answer: Any) -> Any:
        if asked["do"] == "ask" and asked["round"] == 1 and node == 101:
            return Failure("the SuperNode is gone (error 5)")
        return answer

    nodes.change = change

    def restart(run: Run) -> None:
        if run.done == 2:
            nodes.restart(101)

    run, nodes, _ = deployed(work, rows, tmp_path, nodes=nodes, every_round=restart)
    lost = [1, 4]  # the places of site 2's clients
    assert difference(run, nodes, local(work, rows, channels=[LostClients({1: lost})])) <= TOLERANCE
    assert [r["lost"] for r in run.history] == [0, 2, 0, 0]
    log = [json.loads(line) for line in (tmp_path / "server" / "events.jsonl").read_text().splitlines()]
    assert {(e["round"], e["site"]) for e in log} == {(2, "site 2")}


@pytest.mark.parametrize("name", few(STATEFUL, ("ditto",)))
def test_a_server_that_dies_in_a_round_goes_on_where_it_was(name: str, tmp_path: Path) -> None:
    rows, work = table(SIZES), job(configured(name), rounds=4)
    nodes = InProcess(work, split(rows, 3), tmp_path)

    def die(node: int, asked: dict[str, Any], answer: Any) -> Any:
        if asked["do"] == "ask" and asked["round"] == 2 and node == 102:
            raise KeyboardInterrupt  # after two sites have worked and written their states
        return answer

    nodes.change = die
    with pytest.raises(KeyboardInterrupt):
        deployed(work, rows, tmp_path, nodes=nodes)
    nodes.change = None
    for node in list(nodes.sites):
        nodes.restart(node)
    run, nodes, told = deployed(work, rows, tmp_path, nodes=nodes)
    assert told["finished"]
    assert run.done == 4
    assert difference(run, nodes, local(work, rows)) <= TOLERANCE


def test_a_stranger_gets_no_clients(tmp_path: Path) -> None:
    """A node that shows no ticket is never sent a site's clients, even if it has their rows."""
    rows, work = table(SIZES), job(configured("ditto"), rounds=3)
    nodes = InProcess(work, split(rows, 3), tmp_path)

    def swap(run: Run) -> None:
        if run.done == 1:
            old = nodes.sites.pop(101)
            nodes.sites[300] = type(old)(work, old.table, tmp_path / "stranger")

    run, nodes, _ = deployed(work, rows, tmp_path, nodes=nodes, every_round=swap)
    assert [r["lost"] for r in run.history] == [0, 2, 2]
    assert {wire.unpack(m)[0]["do"] for node, m in nodes.sent if node == 300} == {"hello"}


# ---- answers that are none -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", few(BAD, ("malformed", "oversized", "nan", "names within names", "loss of text", "too large"))
)
def test_an_answer_that_is_none_is_logged_and_never_averaged_in(kind: str, tmp_path: Path) -> None:
    rows, work = table(SIZES), job(configured("fedavg"), rounds=2)
    nodes = InProcess(work, split(rows, 3), tmp_path)

    def change(node: int, asked: dict[str, Any], answer: Any) -> Any:
        return BAD[kind](answer) if asked["do"] == "ask" and node == 101 and asked["round"] == 1 else answer

    nodes.change = change
    run, nodes, _ = deployed(work, rows, tmp_path, nodes=nodes)
    here = local(work, rows, channels=[LostClients({1: [1, 4]})])
    torch.testing.assert_close(run.state.model["0.weight"], here.state.model["0.weight"], rtol=1e-5, atol=1e-6)
    (event,) = [json.loads(line) for line in (tmp_path / "server" / "events.jsonl").read_text().splitlines()]
    assert event["site"] == "site 2"
    assert len(event["why"]) > 10


# ---- what messages hold ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", few(("cfl", "ditto", "federated_clustering", "oneshot", "momentum_clustering"), ("federated_clustering",))
)
def test_no_message_to_a_site_holds_another_clients_numbers(name: str, tmp_path: Path) -> None:
    """Nothing a site is sent equals a row, a state, a model or a message of another site's client."""
    rows, work = table(SIZES), job(configured(name), rounds=3)
    _, nodes, _ = deployed(work, rows, tmp_path)
    for node, message in nodes.sent:
        head, tree = wire.unpack(message)
        if head["do"] not in ("ask", "finish"):
            assert "tensors" not in head
            assert not flatten(tree)
            continue
        mine = {int(i) for i in head.get("clients", [])}
        own = set(np.load(next((tmp_path / f"site{node - 100}").glob("*/places.npy"))).tolist())
        assert mine <= own
        for path, t in flatten(tree.get("each", {})).items():
            assert len(t) == len(head["clients"]), path
    for i in range(3):  # what sites kept of others: nothing
        others = {c for j, t in enumerate(nodes.tables) if j != i for c in t["who"]}
        for file in (tmp_path / f"site{i}").rglob("*"):
            if file.is_file():
                text = file.read_bytes()
                assert not any(c.encode() in text for c in others), file


def test_additive_answers_are_sums_and_assignments_stay(tmp_path: Path) -> None:
    rows, work = table(SIZES), job(configured("ditto"), rounds=2)
    _, nodes, told = deployed(work, rows, tmp_path)
    for _, answer in nodes.got:
        head, tree = wire.unpack(answer)
        if "tag" not in head:  # no answer to an ask
            assert not tree
            continue
        assert set(tree) <= {"sums", "weights", "counts"}
        assert "own" not in tree.get("sums", {})
        assert not {"cluster", "clusters", "state", "x", "y"} & set(head)
    assert "clusters" not in told


def test_a_site_shows_a_server_state_only_as_far_as_it_is_its_own() -> None:
    from coterie.algorithms.federated_clustering import FederatedClusteringState
    from coterie.exchange.messages import shown_to

    models = {"w": torch.arange(12.0).reshape(4, 3) + 1}
    everyone = torch.ones(4, dtype=torch.bool)
    velocity, members = {"w": models["w"] * 2}, torch.ones(4, 4, dtype=torch.bool)
    state = FederatedClusteringState(models, velocity, members, torch.arange(4), everyone, {"w": torch.zeros(3)})
    seen = shown_to(state, np.array([2]))
    assert seen.models["w"][2].tolist() == [7, 8, 9]
    assert not seen.models["w"][[0, 1, 3]].any()
    assert not seen.velocity["w"][[0, 1, 3]].any()


def test_only_named_client_functions_can_be_called() -> None:
    algorithm = ct.FineTuned(base=ct.FedAvg())
    with pytest.raises(ct.errors.ClientError, match="no client function"):
        wire.function_at(algorithm, "base.__init__")
    with pytest.raises(ct.errors.ClientError, match="no client function"):
        wire.function_at(algorithm, "base.local.fit.__globals__")
