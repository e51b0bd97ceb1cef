"""What sites say before, between and after rounds: taken if it is an answer, and else their own failure alone."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from conformance_settings import configured
from test_pair import TOLERANCE, LostClients, few
from together import SIZES, InProcess, deployed, difference, job, local, split, table

import coterie as ct
from coterie.base.tree import flatten, tree_map
from coterie.engines.base import ClientStates, Env
from coterie.exchange.messages import Ask, MeanBy
from coterie.flower import Failure, answers, heads, serve, wire
from coterie.flower.engine import SitesEngine
from coterie.flower.nodes import Sites
from coterie.flower.server import Server
from coterie.training.fingerprint import fingerprint

NAN, INF = float("nan"), float("inf")


def events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "server" / "events.jsonl").read_text().splitlines()]


# ---- before a run ----------------------------------------------------------------------------------------------------


def _column(**changes: Any) -> Any:
    return lambda told: {"columns": told["columns"] | {"a": told["columns"]["a"] | changes}}


WRONG: dict[str, tuple[str, Any]] = {
    "clients that are no names": ("join", lambda told: {"clients": [1, 2]}),
    "half a character": ("join", lambda told: {"clients": ["\ud800", "b"]}),
    "a client twice": ("join", lambda told: {"clients": ["b", "b"]}),
    "no labels": ("join", lambda told: {"labels": None}),
    "labels that are lists": ("join", lambda told: {"labels": [[1]]}),
    "too few clusters": ("join", lambda told: {"clusters": ["odd"]}),
    "negative sizes": ("join", lambda told: {"sizes": [-5, 40]}),
    "more rows than there are": ("join", lambda told: {"sizes": [10**12, 40]}),
    "no row to train on": ("join", lambda told: {"n_test": told["sizes"]}),
    "a column too few": ("join", lambda told: {"columns": {"a": told["columns"]["a"]}}),
    "no columns": ("join", lambda told: {"columns": None}),
    "a column of no kind": ("join", _column(kind="what")),
    "a column of everyone's own": ("join", _column(kind="own")),
    "negative counts": ("join", _column(present=-3)),
    "infinite counts": ("join", _column(missing=INF)),
    "no digits": ("digits", lambda told: {"digits": None}),
    "too few digits": ("digits", lambda told: {"digits": {"a": [[1, 2], [1, 2]]}}),
    "negative digits": ("digits", lambda told: {"digits": {"a": [[-1, 1, *row[2:]] for row in told["digits"]["a"]]}}),
    "digits of more values": ("digits", lambda told: {"digits": {"a": [[9] * 256] * 2}}),
    "a mean of nan": ("spread", lambda told: {"spread": told["spread"] | {"b": [*told["spread"]["b"][:1], NAN, 1, 1]}}),
    "other rows": ("spread", lambda told: {"spread": told["spread"] | {"b": [10**6, *told["spread"]["b"][1:]]}}),
    "negative squares": ("spread", lambda told: {"spread": told["spread"] | {"b": [*told["spread"]["b"][:2], -1, 1]}}),
    "no spread of a column": ("spread", lambda told: {"spread": {"a": told["spread"]["a"]}}),
}


QUICK = ("clients that are no names", "no labels", "negative counts", "digits of more values", "a mean of nan")


@pytest.mark.parametrize("kind", few(WRONG, QUICK))
def test_a_wrong_answer_before_a_run_names_its_site(kind: str, tmp_path: Path) -> None:
    work = job(configured("fedavg"), rounds=1)
    nodes = InProcess(work, split(table(SIZES), 3), tmp_path)
    when, what = WRONG[kind]

    def change(node: int, asked: dict[str, Any], answer: Any) -> Any:
        if asked["do"] != when or node != 101:
            return answer
        told = wire.unpack(answer)[0]
        return wire.pack(told | what(told))

    nodes.change = change
    with pytest.raises(ct.errors.CoterieError, match=r"^site 2 \(node 101\) cannot take part: .*\.$"):
        deployed(work, None, tmp_path, nodes=nodes)


def _digits(**counts: int) -> dict[str, Any]:
    """Counts of 256 bytes of column a, for one prefix."""
    row = [0] * 256
    for byte, n in counts.items():
        row[int(byte.removeprefix("b"))] = n
    return {"digits": {"a": [row]}}


def test_counts_of_digits_are_at_most_all_values() -> None:
    for right in (_digits(b3=7), _digits(b3=5), _digits(b0=3, b255=4), _digits()):  # none: too few to tell apart
        assert answers.digits(right, {"a": 1}, {"a": 7}) == right["digits"]
    for wrong in (
        _digits(b3=8),
        _digits(b0=4, b255=4),
        _digits(b0=True, b1=6),
        {"digits": {"b": [[0]]}},
    ):
        with pytest.raises(wire.Malformed, match="counts of bytes, of no more values"):
            answers.digits(wrong, {"a": 1}, {"a": 7})


def test_a_mean_and_squares_lie_within_two_units() -> None:
    for right in ([3, 2.0, 0.0, 1.0], [3, -2.0, 48.0, 1.0]):
        assert answers.spread({"spread": {"a": right}}, {"a": 3}) == {"a": right}
    for wrong in ([3, 2.1, 0.0, 1.0], [3, -9.0, 0.0, 1.0], [3, 0.0, 49.0, 1.0], [3, 0.0, 1.0, 0.0]):
        with pytest.raises(wire.Malformed, match="that fit together"):
            answers.spread({"spread": {"a": wrong}}, {"a": 3})


@pytest.mark.parametrize("told", [True, False])
def test_true_and_false_are_no_numbers(told: bool) -> None:
    """JSON has its own words for them, and Python takes them for 1 and 0."""
    assert not answers.finite(told)
    assert not answers.whole(told, 10)
    for pair in ([told, 1], [1.0, told]):
        with pytest.raises(wire.Malformed, match="a finite sum and a number of clients"):
            answers.total(pair, "accuracy", 3)
    with pytest.raises(wire.Malformed, match="that fit together"):
        answers.spread({"spread": {"a": [1, told, 0.0, 1.0]}}, {"a": 1})
    private = {"noise_multiplier": 2.0, "n_users": 1, "sampling": 1.0, "expected": 1.0}
    assert heads._private(private)
    for name in private:
        assert not heads._private(private | {name: told})


@pytest.mark.parametrize(("n_valid", "n_test", "right"), [(0, 9, True), (4, 5, True), (0, 10, False), (4, 6, False)])
def test_a_client_needs_one_row_to_train_on(n_valid: int, n_test: int, right: bool) -> None:
    told = {"clients": ["c"], "sizes": [10], "n_valid": [n_valid], "n_test": [n_test], "columns": {}}
    data = {"kind": "regression", "features": []}
    if right:
        assert answers.joined(told, data, private=False)["n_test"] == [n_test]
    else:
        with pytest.raises(wire.Malformed, match="Client 'c' has no row to train on"):
            answers.joined(told, data, private=False)


def test_nodes_beyond_the_sites_of_a_run_are_left_out_and_that_is_said(tmp_path: Path) -> None:
    work, said = job(configured("fedavg"), rounds=1), []
    nodes = InProcess(work, split(table(SIZES), 3), tmp_path)
    serve(work, nodes, tmp_path / "server", sites=2, tell=said.append)
    assert said[:2] == ["site 1 is node 100", "site 2 is node 101"]
    assert "1 nodes that are connected were left out" in said[2]
    assert "left out" in events(tmp_path)[0]["why"]


def test_clients_of_many_rows_cost_the_server_nothing(tmp_path: Path) -> None:
    """Their rows are elsewhere; here there are as many zeros, of which none is in memory."""
    work = job(configured("fedavg"))
    told = {"columns": list("abcd"), "classes": ["no", "perhaps", "yes"], "dtype": "float32"}
    sites, found = Sites(InProcess(work, [], tmp_path), "run"), set()
    for rows in (10**12, 10**12 + 1):
        fed = Server(work, tmp_path, sites, {"site 1": ["x"]}, told | {"n_train": {"x": rows}}).federation()
        task = work.task(fed)
        found.add(fingerprint(task, fed, task.init(0, torch.float32), ()).text)
    assert len(found) == 2


# ---- between rounds --------------------------------------------------------------------------------------------------


class Late(InProcess):
    """Site 2 begins with round 2's message when the server has given it up, and round 3's arrives before it is done."""

    late: bytes | None = None

    def exchange(
        self, messages: Mapping[int, bytes], timeout: float | None = None, soon: bool = False
    ) -> dict[int, bytes | Failure]:
        head = wire.unpack(next(iter(messages.values())))[0]
        if head["do"] != "ask" or head["round"] not in (1, 2):
            return super().exchange(messages)
        answers = super().exchange({n: m for n, m in messages.items() if n != 101})
        if head["round"] == 1:
            self.late = messages[101]
            return answers | {101: Failure("no answer in time")}
        engine = self.sites[101]._run(head["run"]).engine
        works = engine.shares

        def interrupted(*given: Any) -> Any:
            engine.shares = works
            answers.update(super(Late, self).exchange({101: messages[101]}))
            return works(*given)

        engine.shares = interrupted  # type: ignore[method-assign]
        with pytest.raises(ct.errors.CoterieError, match="newer message"):
            self.sites[101].answer(self.late)
        with pytest.raises(ct.errors.CoterieError, match="newer message"):  # and once more, from its beginning
            self.sites[101].answer(self.late)
        return answers


def test_a_late_answer_does_not_touch_the_states_of_a_newer_one(tmp_path: Path) -> None:
    rows, work = table(SIZES), job(configured("ditto"), rounds=4)
    nodes = Late(work, split(rows, 3), tmp_path)
    run, nodes, _ = deployed(work, rows, tmp_path, nodes=nodes)
    assert [r["lost"] for r in run.history] == [0, 2, 0, 0]
    assert difference(run, nodes, local(work, rows, channels=[LostClients({1: [1, 4]})])) <= TOLERANCE


def test_a_run_that_diverges_says_so(tmp_path: Path) -> None:
    work = job(ct.FedAvg(local=ct.LocalSGD(steps=3, lr=3e38)), rounds=2)
    with pytest.raises(ct.errors.Diverged, match="Lower the learning rate") as end:
        deployed(work, table(SIZES), tmp_path)
    assert end.value.result is None


def test_one_site_cannot_say_for_all_that_the_run_diverged(tmp_path: Path) -> None:
    work = job(configured("fedavg"), rounds=3)
    nodes = InProcess(work, split(table(SIZES), 3), tmp_path)

    def change(node: int, asked: dict[str, Any], answer: Any) -> Any:
        if asked["do"] != "ask" or asked["round"] != 1:
            return answer
        if node != 101:
            return Failure("no answer in time")
        head, tree = wire.unpack(answer)
        return wire.pack(
            head | {"clients": [], "dropped": head["clients"], "info": {}}, tree_map(torch.zeros_like, tree)
        )

    nodes.change = change
    run, _, _ = deployed(work, None, tmp_path, nodes=nodes)
    assert [r["lost"] for r in run.history] == [0, len(SIZES), 0]
    assert ("site 2", "no client's answer is a number") in {(e["site"], e["why"]) for e in events(tmp_path)}


def test_a_site_may_have_very_many_clients() -> None:
    """Their positions alone take more than a megabyte."""
    n = 150_000
    fed = ct.Federation.from_flat(
        np.zeros((n, 4)), np.arange(n) % 3, sizes=np.ones(n, int), clients=list(range(n)), one_class="allow"
    )
    work, told = job(configured("fedavg")), []
    task = work.task(fed)
    initial = task.init(0, torch.float32)
    env = Env(task, fed, initial, 0, states=ClientStates(n, nothing=True))
    ask = Ask(work.algorithm.train, np.arange(n), {"model": initial}, reduce=MeanBy(1))

    def exchange(messages: Mapping[str, bytes], soon: bool = False) -> Mapping[str, bytes]:
        share = engine.expected(ask, env)
        sums = {k: share[k] for k in ("sums", "weights")} | {"counts": torch.tensor([n])}
        head = {"clients": list(range(n)), "dropped": [], "info": {}, "tag": None}
        told.append(wire.pack(head, sums))
        return {"site 1": told[0]}

    engine = SitesEngine(work.algorithm, exchange, {"site 1": np.arange(n)}, "run")
    assert not len(engine.run(ask, env).lost)
    assert len(told[0]) > 1 << 20


# ---- who is there ----------------------------------------------------------------------------------------------------


class Hello:
    """Nodes that answer hello in these ways, one after another."""

    def __init__(self, *answers: Mapping[int, Any], slow: float = 0.0) -> None:
        self.answers, self.slow, self.timeouts = list(answers), slow, []

    def connected(self) -> list[int]:
        return [1, 2]

    def exchange(
        self, messages: Mapping[int, bytes], timeout: float | None = None, soon: bool = False
    ) -> Mapping[int, Any]:
        time.sleep(self.slow)
        self.timeouts.append(timeout)
        return {n: a for n, a in self.answers.pop(0).items() if n in messages}


def test_a_node_that_did_not_answer_hello_is_asked_again() -> None:
    ticket, other = wire.pack({"ticket": "t"}), wire.pack({"ticket": "ä\ud800"})
    nodes = Hello({1: Failure("gone"), 2: other}, {1: b"nonsense"}, {1: ticket})
    sites = Sites(nodes, "run", {"site 1": "t"})
    for _ in range(3):
        sites.find()
    assert sites.where == {"site 1": 1}
    assert nodes.timeouts == [30.0] * 3


def test_a_mute_node_is_not_waited_for_in_every_question() -> None:
    nodes = Hello({}, slow=0.05)
    sites = Sites(nodes, "run", {"site 1": "t"})
    sites.find()
    sites.find()  # there would be no second answer
    assert len(nodes.timeouts) == 1


# ---- after a run -----------------------------------------------------------------------------------------------------


SCORES: dict[str, Any] = {
    "of infinitely many": {"accuracy": [1.0, INF]},
    "of nan": {"accuracy": [NAN, 1]},
    "one right, one wrong": {"accuracy": [0.5, 1], "log_loss": [0, 99]},
    "not asked for": {"new": [1, 1]},
    "none": 7,
}


@pytest.mark.parametrize("kind", few(SCORES, ("of infinitely many", "one right, one wrong")))
def test_wrong_scores_cost_nothing_but_themselves(kind: str, tmp_path: Path) -> None:
    work = job(configured("fedavg"), rounds=1)
    nodes = InProcess(work, split(table(SIZES), 3), tmp_path)
    there = []

    def change(node: int, asked: dict[str, Any], answer: Any) -> Any:
        if asked["do"] == "finish":
            there.append((tmp_path / "server" / "history.parquet").exists())
            return wire.pack({"scores": SCORES[kind] if node == 101 else {"accuracy": [2.0, 2]}})
        return answer

    nodes.change = change
    _, _, told = deployed(work, None, tmp_path, nodes=nodes)
    assert told["scores"] == {"accuracy": 1.0}
    assert all(there)
    assert [e["site"] for e in events(tmp_path)] == ["site 2"]
    assert json.loads((tmp_path / "server" / "deployment.json").read_text())["rounds"] == 1
    assert len(pd.read_parquet(tmp_path / "server" / "history.parquet")) == 1


@pytest.mark.parametrize("told", [{"accuracy": [1e308, 2]}, {"accuracy": [2.1, 2]}, {"log_loss": [1.5e308, 2]}])
def test_a_score_that_no_client_can_have_is_its_sites_failure(told: dict[str, Any]) -> None:
    with pytest.raises(wire.Malformed, match=r"from 0 to 1 per client|must stay a number"):
        answers.scores(told, ("accuracy", "log_loss"), 2)
    assert answers.scores({"accuracy": [2.0, 2], "log_loss": [-5.0, 2]}, ("accuracy", "log_loss"), 2)


@pytest.mark.parametrize("tag", ["ä", "a" * 65, "²", "0-0-a\n", ""])
def test_a_tag_that_its_site_would_refuse_is_refused_when_it_comes(tag: str, tmp_path: Path) -> None:
    work = job(configured("fedavg"), rounds=2)
    nodes = InProcess(work, split(table(SIZES), 3), tmp_path)

    def change(node: int, asked: dict[str, Any], answer: Any) -> Any:
        if node != 101 or asked["do"] != "ask" or asked["round"]:
            return answer
        head, tree = wire.unpack(answer)
        return wire.pack(head | {"tag": tag}, tree)

    nodes.change = change
    run, _, _ = deployed(work, None, tmp_path, nodes=nodes)
    assert [r["lost"] > 0 for r in run.history] == [True, False]


@pytest.mark.parametrize("size", [3e38, 1e25])
def test_a_row_too_large_to_reckon_with_is_its_clients_loss(size: float, tmp_path: Path) -> None:
    """Its squares would be infinite in the server's state, and end the run for all."""
    work = job(configured("cfl"), rounds=3)
    nodes = InProcess(work, split(table(SIZES), 3), tmp_path)

    def change(node: int, asked: dict[str, Any], answer: Any) -> Any:
        if node != 101 or asked["do"] != "ask" or asked["round"] != 1 or asked["reduce"] is not None:
            return answer
        head, tree = wire.unpack(answer)
        for t in flatten(tree["send"]).values():
            t[0] = size
        return wire.pack(head, tree)

    nodes.change = change
    run, _, told = deployed(work, None, tmp_path, nodes=nodes)
    assert told["finished"]
    assert run.dropped
