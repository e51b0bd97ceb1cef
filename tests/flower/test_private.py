"""Private deployments: clipped at the sites, noisy at the server, one ledger that survives a restart."""

from __future__ import annotations

import json
import os
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from together import DATA, SIZES, InProcess, deployed, job, local, split, table
from torch import nn

import coterie as ct
from coterie.base.tree import flatten, unflatten
from coterie.data.provenance import undeclared
from coterie.engines.private import Releases
from coterie.exchange.messages import Ask, SumBy
from coterie.flower import Job, Site, wire
from coterie.flower.engine import _require_within
from coterie.flower.meeting import joining
from coterie.flower.server import Server
from coterie.privacy.receipt import Receipt
from coterie.training.run import Run

PRIVATE: dict[str, Any] = {k: v for k, v in DATA.items() if k != "cluster"} | {
    "scaling": "own",
    "classes": ["no", "perhaps", "yes"],
    "public": ["clients"],
}
FEW = ct.LocalSGD(steps=2, lr=0.1, batch_size=None)
pytestmark = pytest.mark.filterwarnings("ignore:In this private run")


def private(noise: str, rounds: int = 3) -> Job:
    budget = ct.Privacy(epsilon=8.0, delta=1e-5, clip=0.5, noise=noise)
    return Job(ct.FedAvg(local=FEW), job(ct.FedAvg()).task, PRIVATE, rounds, privacy=budget)


def test_the_numbers_of_a_private_fit_where_noise_has_a_seed(tmp_path: Path) -> None:
    rows, work = table(SIZES), private("simulation")
    nodes = InProcess(work, split(rows, 3), tmp_path)
    nodes.change = lambda node, asked, answer: (
        wire.pack({"scores": {"accuracy": [1.0, 1]}}) if asked["do"] == "finish" and node == 101 else answer
    )
    run, nodes, told = deployed(work, rows, tmp_path, nodes=nodes)
    assert told["scores"] == {}  # whoever sends some is not heard
    assert '"site": "site 2"' in (tmp_path / "server" / "events.jsonl").read_text()
    here = local(work, rows, privacy=work.privacy)
    for name, t in here.state.model.items():
        torch.testing.assert_close(run.state.model[name], t, rtol=1e-5, atol=1e-5)
    for _, answer in nodes.got:
        head, tree = wire.unpack(answer)
        assert not head.get("info")
        assert not head.get("scores")
        assert not {"sizes", "n_test"} & set(head)
        if "sums" in tree:
            total = torch.cat([t.flatten() for t in tree["sums"]["model"].values()])
            assert float(total.norm()) <= 0.5 * len(head["clients"]) + 1e-6  # clipped before it left the site


@pytest.mark.filterwarnings("ignore::coterie.errors.CoterieWarning")
def test_facts_that_sites_tell_void_the_receipt_unless_the_run_declares_them(tmp_path: Path) -> None:
    rows = table(SIZES)
    for left_out, reason in (("public", "which clients take part"), ("classes", "the classes came from"), (None, "")):
        work = private("exact", rounds=1)
        work = replace(work, data={k: v for k, v in work.data.items() if k != left_out})
        deployed(work, rows, tmp_path / str(left_out))
        receipt = Receipt.from_json((tmp_path / str(left_out) / "server" / "receipt.json").read_text())
        assert receipt.valid == (left_out is None)
        assert all(reason in r for r in receipt.reasons)


class Looked(nn.Module):
    """Looks its first feature up in a table, and fails for a number beyond the table."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(6, 3), nn.Linear(features, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(x) + self.table(x[:, 0].abs().long())


@pytest.mark.filterwarnings("ignore::coterie.errors.CoterieWarning")
def test_a_client_whose_function_fails_does_not_take_the_others_of_its_site_along(tmp_path: Path) -> None:
    rows, sums = table((60,) * 7), []
    work = replace(private("exact", rounds=1), task=lambda fed: ct.Task(lambda: Looked(fed.n_features)))
    for far in (False, True):
        if far:  # 59 of 60 rows are alike: scaled by the client itself, the last one is 7.7
            mine = rows["who"] == "client 00"
            rows.loc[mine, "a"] = np.where(np.arange(int(mine.sum())) == 1, 1e6, 0.0)
        _, nodes, _ = deployed(work, rows, tmp_path / str(far))
        assert not (tmp_path / str(far) / "server" / "events.jsonl").read_text()
        sums.append({n: tree["sums"][""] for n, a in nodes.got for _, tree in [wire.unpack(a)] if "sums" in tree})
    assert sums[0].keys() == sums[1].keys()
    before, after = (one[100].double() for one in sums)
    moved, radius = float((before - after).norm()), 2.0**20 + len(before) ** 0.5
    assert 0 < moved <= radius  # the clip of one client on the lattice
    assert all(torch.equal(sums[0][node], sums[1][node]) for node in (101, 102))


@pytest.mark.filterwarnings("ignore::coterie.errors.CoterieWarning")
def test_a_stray_label_at_a_site_neither_stops_nor_widens_a_private_run(tmp_path: Path) -> None:
    rows, work = table(SIZES), private("exact", rounds=1)
    changed = rows.astype({work.data["target"]: object})
    changed.loc[changed[work.data["client"]] == changed[work.data["client"]].iloc[0], work.data["target"]] = "never"
    shapes = []
    for name, one in (("usual", rows), ("changed", changed)):
        deployed(work, one, tmp_path / name)
        receipt = Receipt.from_json((tmp_path / name / "server" / "receipt.json").read_text())
        assert receipt.valid, receipt.reasons
        shapes.append([line["dimension"] for line in receipt.releases])
    assert shapes[0] == shapes[1]


def test_the_ledger_is_the_servers_and_survives_its_restart(tmp_path: Path) -> None:
    rows, work = table(SIZES), private("exact")
    nodes = InProcess(work, split(rows, 3), tmp_path)

    def die(node: int, asked: dict[str, Any], answer: Any) -> Any:
        if asked["do"] == "ask" and asked["round"] == 2 and node == 102:
            raise KeyboardInterrupt
        return answer

    nodes.change = die
    with pytest.raises(KeyboardInterrupt):
        deployed(work, rows, tmp_path, nodes=nodes)
    nodes.change = None
    deployed(work, rows, tmp_path, nodes=nodes)
    receipt = Receipt.from_json((tmp_path / "server" / "receipt.json").read_text())
    assert receipt.valid, receipt.reasons
    assert receipt.epsilon <= 8.0
    assert "server is trusted" in receipt.trust
    assert "which it sees before the noise" in receipt.trust
    with sqlite3.connect(tmp_path / "server" / "ledger.sqlite") as ledger:
        assert ledger.execute("select count(*) from sqlite_master").fetchone()[0]
    assert not list(tmp_path.glob("site*/**/*.sqlite"))


def test_a_site_knows_its_budget_whatever_the_server_asks(tmp_path: Path) -> None:
    work = private("simulation", rounds=1)
    _, nodes, _ = deployed(work, table(SIZES), tmp_path)
    head, tree = next(m for m in (wire.unpack(m) for n, m in nodes.sent if n == 101) if m[0]["do"] == "ask")
    for change in ({"private": None}, {"reduce": None}):
        with pytest.raises(ct.errors.CoterieError, match=r"privacy budget|Privacy needs sums"):
            nodes.sites[101].answer(wire.pack(head | change, tree))
    for question in ({"do": "digits", "level": 0, "prefixes": {"a": [0]}}, {"do": "spread", "fills": {"a": 0.0}}):
        with pytest.raises(ct.errors.CoterieError, match="no statistics"):
            nodes.sites[101].answer(wire.pack(question))


def test_a_server_that_dies_before_its_first_round_can_start_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, work = table(SIZES), private("simulation", rounds=1)
    nodes = InProcess(work, split(rows, 3), tmp_path)

    def die(*given: Any) -> None:
        raise KeyboardInterrupt

    for owner in (Server, Run):  # before either of its two files
        with monkeypatch.context() as patch:
            patch.setattr(owner, "save", die)
            with pytest.raises(KeyboardInterrupt):
                deployed(work, rows, tmp_path, nodes=nodes)
    assert deployed(work, rows, tmp_path, nodes=nodes)[2]["finished"]


def test_the_folder_of_another_run_is_refused_before_anybody_is_asked(tmp_path: Path) -> None:
    rows, work = table(SIZES), private("simulation", rounds=1)
    (tmp_path / "server").mkdir()
    nodes = InProcess(work, split(rows, 3), tmp_path)
    for name in ("checkpoint.safetensors", "receipt.json"):
        (tmp_path / "server" / name).write_bytes(b"")
        with pytest.raises(ct.errors.ConfigError, match="has no sites"):
            deployed(work, rows, tmp_path, nodes=nodes)
        (tmp_path / "server" / name).unlink()
    assert not nodes.sent


@pytest.mark.parametrize("told", ["{", "[]", "{}", '{"a":' * 50_000, "\xff"])
def test_a_damaged_list_of_sites_is_one_sentence(told: str, tmp_path: Path) -> None:
    rows, work = table(SIZES), private("simulation", rounds=1)
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "checkpoint.safetensors").write_bytes(b"")
    (tmp_path / "server" / "sites.json").write_bytes(told.encode("latin-1"))
    with pytest.raises(ct.errors.ConfigError, match=r"sites\.json is damaged"):
        deployed(work, rows, tmp_path)


# ---- a malicious site ------------------------------------------------------------------------------------------------

LIES = {
    "the largest number": 2**62,
    "the smallest number": -(2**63),
    "a number that can be added": 2**40,
    "a little too long": 2 * 2**20 + 2**12,
}


def grouped(noise: str, rounds: int = 2) -> Job:
    """Counts of groups are released too."""
    budget = ct.Privacy(epsilon=8.0, delta=1e-5, clip=0.5, noise=noise)
    return Job(ct.IFCA(clusters=2, local=FEW), job(ct.FedAvg()).task, PRIVATE, rounds, privacy=budget)


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("make", [private, grouped])
def test_a_private_sum_longer_than_its_clients_is_that_sites_failure(lie: str, make: Any, tmp_path: Path) -> None:
    work = make("exact", rounds=2)
    nodes = InProcess(work, split(table(SIZES), 3), tmp_path)

    def change(node: int, asked: dict[str, Any], answer: Any) -> Any:
        if asked["do"] != "ask" or asked["round"] != 0 or node == 100:
            return answer
        head, tree = wire.unpack(answer)
        if "" in tree.get("sums", {}):
            tree["sums"][""].reshape(-1)[-1] = LIES[lie]
        return wire.pack(head, tree)

    nodes.change = change
    run, _, told = deployed(work, None, tmp_path, nodes=nodes)
    assert told["finished"]
    assert all(bool(t.isfinite().all()) for t in run.env.initial.values())
    log = (tmp_path / "server" / "events.jsonl").read_text()
    assert log.count("longer than") == 2  # both sites that lied, in the round in which they did
    assert Receipt.from_json((tmp_path / "server" / "receipt.json").read_text()).epsilon <= 8.0


@pytest.mark.parametrize("counts", [[-1, 1], [2, 1], [2**62, 0]])
def test_a_private_count_of_more_clients_than_there_are_is_refused(counts: list[int], tmp_path: Path) -> None:
    work = grouped("exact")
    nodes = InProcess(work, split(table(SIZES), 3), tmp_path)

    def change(node: int, asked: dict[str, Any], answer: Any) -> Any:
        if asked["do"] != "ask" or asked["round"] != 0 or node != 101:
            return answer
        head, tree = wire.unpack(answer)
        if "" in tree.get("sums", {}):
            tree["sums"][""][:, 0] = torch.tensor(counts) * (2**19 if max(counts) < 2**60 else 1)
        return wire.pack(head, tree)

    nodes.change = change
    assert deployed(work, None, tmp_path, nodes=nodes)[2]["finished"]
    assert "each at most once" in (tmp_path / "server" / "events.jsonl").read_text()


@pytest.mark.parametrize("noise", ["exact", "simulation"])
@pytest.mark.parametrize(("length", "fits"), [(0.49, True), (0.6, False)])
def test_a_groups_sum_is_bounded_by_its_own_clients(length: float, fits: bool, noise: str) -> None:
    """One client in the first group and three in the second, each at most 0.5 long."""
    private = Releases(ct.Privacy(8.0, 1e-5, clip=0.5, noise=noise), None, 1.0, 4, 1.0, 4.0)  # type: ignore[arg-type]
    made, counts = private.mechanism(2, 3), torch.tensor([1, 3])
    sums = torch.tensor([[length, 0.0, 0.0], [0.0, 1.4, 0.0]], dtype=torch.float64)
    if noise == "exact":
        steps = (sums / made.lattice.step).round().long()
        sums = torch.cat([(counts * made.weight).unsqueeze(1), steps], 1)  # type: ignore[union-attr]
    share, ask = {"sums": {"": sums}, "counts": counts}, Ask(FEW.fit, np.arange(4), reduce=SumBy(2))
    if fits:
        _require_within(share, ask, private, 4)
    else:
        with pytest.raises(wire.Malformed, match="A private sum is longer"):
            _require_within(share, ask, private, 4)


@pytest.mark.parametrize("options", [{}, {"min_rows": 2}, {"drop_missing": True}])
@pytest.mark.parametrize("public", [[], ["clients"]])
def test_who_takes_part_came_from_the_sites_rows_unless_it_is_declared(
    options: dict[str, Any], public: list[str]
) -> None:
    work = replace(private("exact"), data=PRIVATE | options | {"public": public})
    known = {"columns": ["a"], "classes": ["no", "yes"], "dtype": "float32", "n_train": {"c": 1}}
    made = Server(work, Path("nowhere"), None, {"site 1": ["c"]}, known).federation()  # type: ignore[arg-type]
    assert any("clients take part came from" in why for why in undeclared(made, groups=False)) == (not public)


# ---- a malicious server ----------------------------------------------------------------------------------------------


def asked(nodes: InProcess, node: int = 101) -> list[tuple[dict[str, Any], Any]]:
    return [m for m in (wire.unpack(m) for n, m in nodes.sent if n == node) if m[0]["do"] == "ask"]


def test_a_site_counts_its_own_budget_over_restarts_and_runs(tmp_path: Path) -> None:
    work = private("exact", rounds=2)
    _, nodes, _ = deployed(work, table(SIZES), tmp_path)
    (first, tree), (head, _) = asked(nodes)
    nodes.sites[101].answer(wire.pack(head | {"number": 2**70}, asked(nodes)[1][1]))  # a server that was started again
    nodes.restart(101)
    site = nodes.sites[max(nodes.sites)]
    for i in range(30):
        with pytest.raises(ct.errors.CoterieError, match="budget of this site is spent"):
            site.answer(wire.pack(head | {"ask": 1 + i, "number": 2**70 + i}, tree))
    tree["down"]["model"]["0.bias"] += 1.0
    with pytest.raises(ct.errors.CoterieError, match="repeats a question with other content"):
        site.answer(wire.pack(first | {"number": 2**71}, tree))
    again = InProcess(work, nodes.tables, tmp_path)  # another run in the same folders
    with pytest.raises(ct.errors.CoterieError, match="budget of this site is spent"):
        deployed(work, None, tmp_path / "other", nodes=again)


def test_a_run_asks_as_often_as_its_file_says_though_the_budget_would_allow_more(tmp_path: Path) -> None:
    budget = ct.Privacy(epsilon=8.0, delta=1e-5, clip=0.5, noise="exact", total_epsilon=100.0)
    work = Job(ct.FedAvg(local=FEW), job(ct.FedAvg()).task, PRIVATE, 2, privacy=budget)
    site = Site(work, table(SIZES), tmp_path / "site")
    begun(site)
    head, tree = a_question(work, tmp_path)
    for i in range(2):
        site.answer(wire.pack(head | {"round": i}, tree))
    with pytest.raises(ct.errors.CoterieError, match="a run may ask 2 questions"):
        site.answer(wire.pack(head | {"ask": 7}, tree))
    begun(site, "second")
    site.answer(wire.pack(head | {"run": "second"}, tree))  # the limit is that run's own


def test_a_site_refuses_what_no_honest_server_asks(tmp_path: Path) -> None:
    _, nodes, _ = deployed(private("exact", rounds=2), table(SIZES), tmp_path)
    head, tree = asked(nodes)[0]
    wrong: dict[str, dict[str, Any]] = {
        "one alone": {"clients": head["clients"][:1]},
        "each once": {"clients": head["clients"][:1] * 2},
        "at most 64 groups": {"reduce": ["MeanBy", 100_000]},
        "noise_multiplier is": {"private": head["private"] | {"noise_multiplier": 0.01}},
        "n_users is": {"private": head["private"] | {"n_users": 8}},
        "sampling is": {"private": head["private"] | {"sampling": 0.5}},
        "expected is": {"private": head["private"] | {"expected": 1.0}},
    }
    for why, change in wrong.items():
        with pytest.raises(ct.errors.CoterieError, match=why):
            nodes.sites[101].answer(wire.pack(head | {"number": 2**70} | change, tree))


def test_a_site_writes_down_what_leaves(tmp_path: Path) -> None:
    _, nodes, _ = deployed(private("exact", rounds=2), table(SIZES), tmp_path)
    file = tmp_path / "site1" / "outgoing.jsonl"
    assert file.stat().st_mode & 0o777 == 0o600
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["message"] for line in lines] == ["join", "begin", "ask", "ask", "finish"]
    assert [line["bytes"] for line in lines] == [len(a) for n, a in nodes.got if n == 101]
    assert [line["releases"] for line in lines] == [0, 0, 1, 2, 2]
    assert [line["round"] for line in lines if line["message"] == "ask"] == [0, 1]
    assert lines[2]["tensors"]["sums/"] == [
        "int64",
        [sum(t.numel() for t in asked(nodes)[0][1]["down"]["model"].values())],
    ]


def test_a_refusal_is_written_down_and_does_not_say_where_the_files_are(tmp_path: Path) -> None:
    """The table holds text where a weight is expected, then it is gone; then files of the folder are links."""
    rows, file, folder = table(SIZES).assign(weight="heavy"), tmp_path / "rows.csv", tmp_path / "site"
    rows.to_csv(file, index=False)
    work = replace(job(ct.FedAvg()), data=DATA | {"weight": "weight"})
    site, join = Site(work, file, folder), wire.pack(joining(work))
    spread = wire.pack({"do": "spread", "fills": {"a": 0.0}})
    begin = {"do": "begin", "run": "r", "ticket": "t", "n_clients": len(SIZES)}
    begin |= {"places": {f"client {i:02d}": i for i in range(len(SIZES))}}
    begin |= {"agreement": {"plan": [], "classes": ["no", "perhaps", "yes"]}}
    told = [refusal(site, wire.pack(begin))]
    file.unlink()
    told += [refusal(site, join)]
    log = [json.loads(line) for line in (folder / "outgoing.jsonl").read_text().splitlines()]
    assert [(line["message"], line["refused"]) for line in log] == [("begin", told[0]), ("join", told[1])]
    assert log[0]["run"] == "r"
    (folder / "statistics.json").symlink_to(tmp_path / "elsewhere")
    told += [refusal(site, spread)]
    (folder / "statistics.json").unlink()
    (folder / "outgoing.jsonl").unlink()
    (folder / "outgoing.jsonl").symlink_to(tmp_path / "elsewhere")
    told += [refusal(site, join)]
    assert "the site's table" in told[1]
    assert "the site's folder/statistics.json is a symbolic link" in told[2]
    assert "the site's folder/outgoing.jsonl is a symbolic link" in told[3]
    assert not [sentence for sentence in told if str(tmp_path) in sentence]


def refusal(site: Site, message: bytes) -> str:
    with pytest.raises(ct.errors.CoterieError) as told:
        site.answer(message)
    return str(told.value)


def test_a_cohort_that_draws_a_client_alone_costs_its_contribution(tmp_path: Path) -> None:
    budget = ct.Privacy(epsilon=8.0, delta=1e-5, clip=0.5, noise="exact")
    work = Job(ct.FedAvg(local=FEW), job(ct.FedAvg()).task, PRIVATE, 3, cohort=1, privacy=budget)
    _, nodes, told = deployed(work, table(SIZES), tmp_path, 1)
    assert told["finished"]
    assert not asked(nodes, 100)


def sums_of_sites(rows: pd.DataFrame, folder: Path) -> dict[int, torch.Tensor]:
    """What each site sends in a round of unstable training."""
    steps = ct.LocalSGD(steps=80, lr=5.0, batch_size=None, clip=10.0)
    budget = ct.Privacy(epsilon=8.0, delta=1e-5, clip=0.5)
    task = lambda fed: ct.Task(lambda: nn.Sequential(nn.Linear(4, 64), nn.GELU(), nn.Linear(64, 3)))  # noqa: E731
    _, nodes, _ = deployed(Job(ct.FedAvg(local=steps), task, PRIVATE, 1, privacy=budget), rows, folder)
    sent = [(node, wire.unpack(answer)[1]) for node, answer in nodes.got]
    return {node: tree["sums"][""] for node, tree in sent if "sums" in tree}


def test_a_clients_share_of_a_sites_sum_does_not_depend_on_the_others(tmp_path: Path) -> None:
    """What a client's data change in its site's sum is one number, whatever its company; other sites notice nothing."""

    def summed(first: int, last: int) -> dict[int, torch.Tensor]:
        rows = table(SIZES)
        rest = rows[~rows["who"].isin(["client 00", "client 06"])]  # these two share the first of three sites
        changed = [table((n,), seed=n).assign(who=who) for n, who in ((first, "client 00"), (last, "client 06"))]
        whole = pd.concat([changed[0], rest, changed[1]], ignore_index=True).fillna({"a": 0.5})
        return sums_of_sites(whole, tmp_path / f"{first}-{last}")

    before, last = summed(12, 25), summed(12, 47)
    assert not torch.equal(before[100], last[100])
    for size in (36, 5):
        now, both = summed(size, 25), summed(size, 47)
        assert torch.equal(now[101], before[101])
        assert torch.equal(now[102], before[102])
        assert torch.equal(both[100] - now[100], last[100] - before[100])


def begun(site: Site, run: str = "r", **change: Any) -> dict[str, Any]:
    """A run at a site that has all clients, begun by a server of our own."""
    clients = wire.unpack(site.answer(wire.pack(joining(site.job))))[0]["clients"]
    head = {
        "do": "begin", "run": run, "ticket": "t", "agreement": {"plan": [], "classes": PRIVATE["classes"]},
        "n_clients": len(clients), "places": {c: i for i, c in enumerate(clients)},
    }  # fmt: skip
    return wire.unpack(site.answer(wire.pack(head | change)))[0]


def a_question(work: Job, folder: Path) -> tuple[dict[str, Any], Any]:
    """What an honest server asks first, for a run of the name r."""
    _, nodes, _ = deployed(work, table(SIZES), folder, 1)
    head, tree = asked(nodes, 100)[0]
    return head | {"run": "r", "have": None, "base": None, "number": 2**60}, tree


def test_the_budget_of_a_site_is_what_its_runs_cost_and_not_a_number_of_questions(tmp_path: Path) -> None:
    """A second run's file with more rounds, or a larger clip, cannot ask past what the first has spent."""
    first, more = private("exact", rounds=2), private("exact", rounds=8)
    site, rows = Site(first, table(SIZES), tmp_path / "site"), table(SIZES)
    begun(site)
    head, tree = a_question(first, tmp_path / "first")
    for i in range(2):
        site.answer(wire.pack(head | {"round": i}, tree))
    other, (head, tree) = Site(more, rows, tmp_path / "site"), a_question(more, tmp_path / "more")
    begun(other, "second")
    for i in range(8):
        with pytest.raises(ct.errors.CoterieError, match="budget of this site is spent"):
            other.answer(wire.pack(head | {"run": "second", "round": i}, tree))
    bigger = ct.Privacy(epsilon=8.0, delta=1e-5, clip=0.5, noise="exact", total_epsilon=12.0)
    third = Job(ct.FedAvg(local=FEW), job(ct.FedAvg()).task, PRIVATE, 8, privacy=bigger)
    other, refused = Site(third, rows, tmp_path / "site"), []
    begun(other, "third")
    for i in range(8):
        try:
            other.answer(wire.pack(head | {"run": "third", "round": i}, tree))
        except ct.errors.CoterieError as why:
            refused.append(str(why))
    assert 0 < len(refused) < 8  # the first ones cost the rest of 12 that 8 left, composed
    assert all("ε = 12" in why for why in refused)


def test_releases_under_two_adjacencies_do_not_add_up_at_a_site(tmp_path: Path) -> None:
    """The cost of a run that hides presence is not its cost for rows in place of others: a mixture is refused."""
    first, rows = private("exact", rounds=2), table(SIZES)
    site = Site(first, rows, tmp_path / "site")
    begun(site)
    head, tree = a_question(first, tmp_path / "first")
    site.answer(wire.pack(head, tree))
    budget = ct.Privacy(epsilon=1.0, delta=1e-5, clip=0.5, noise="exact", total_epsilon=100.0, adjacency="replace")
    second = Job(ct.FedAvg(local=FEW), job(ct.FedAvg()).task, PRIVATE, 2, privacy=budget)
    other, (head, tree) = Site(second, rows, tmp_path / "site"), a_question(second, tmp_path / "second")
    with pytest.raises(ct.errors.CoterieError, match="under another adjacency than 'replace'"):
        begun(other, "second")
    alone = Site(second, rows, tmp_path / "elsewhere")
    begun(alone)
    alone.answer(wire.pack(head, tree))


def test_a_question_cannot_be_written_so_that_it_passes_for_another(tmp_path: Path) -> None:
    """Tensors that nobody asked for may hold the bytes of a second model: a checksum must tell where each tensor ends."""
    work = private("exact", rounds=2)
    site = Site(work, table(SIZES), tmp_path / "site")
    begun(site)
    head, tree = a_question(work, tmp_path)
    model = flatten({"down": {"model": tree["down"]["model"]}})

    def written(tensors: dict[str, torch.Tensor]) -> bytes:
        return b"".join(
            f"{name} {t.dtype} {tuple(t.shape)};".encode() + t.numpy().tobytes() for name, t in tensors.items()
        )

    def spare(name: str, held: bytes) -> dict[str, torch.Tensor]:
        return {name: torch.tensor(list(held), dtype=torch.uint8)}

    one, two = dict(sorted(model.items())), {name: t + 1 for name, t in sorted(model.items())}
    last = spare("down/z", written(two) + written(spare("down/zz", b"")))
    hidden = written(one) + written(last)[: -len(written(two) + written(spare("down/zz", b"")))]
    start = f" torch.uint8 ({len(hidden)},);"
    first = spare("down/a", start.encode()) | one | last
    second = spare(f"down/a torch.uint8 ({len(start)},);", hidden) | two | spare("down/zz", b"")
    assert written(first) == written(second)
    site.answer(wire.pack(head, unflatten(first) | {"known": tree.get("known", {})}))
    with pytest.raises(ct.errors.CoterieError, match="repeats a question with other content"):
        site.answer(wire.pack(head, unflatten(second) | {"known": tree.get("known", {})}))


def test_a_question_to_other_states_is_another_one(tmp_path: Path) -> None:
    """Two attempts of one round leave two states; the same question to both would be two answers for the price of one."""
    budget = ct.Privacy(epsilon=8.0, delta=1e-5, clip=0.5, noise="exact")
    work = Job(ct.FedRep(local=FEW), job(ct.FedAvg()).task, PRIVATE, 3, cohort=0.9, privacy=budget)
    site = Site(work, table(SIZES), tmp_path / "site")
    begun(site)
    head, tree = a_question(work, tmp_path)
    head["clients"] = list(range(len(SIZES)))
    other = {**tree, "down": {"body": {name: t + 1 for name, t in tree["down"]["body"].items()}}}

    def asks(sent: Any, **change: Any) -> Any:
        return wire.unpack(site.answer(wire.pack(head | change, sent)))[0]["tag"]

    one = asks(tree, attempt="a")
    two = asks(other, attempt="b", base=one)
    asks(tree, attempt="c", round=1, have=one, base=two)
    with pytest.raises(ct.errors.CoterieError, match="budget of this site is spent"):
        asks(tree, attempt="d", round=1, have=two, base=one)


def test_two_sums_cannot_differ_in_one_client_where_everyone_takes_part(tmp_path: Path) -> None:
    work = private("exact", rounds=2)
    site = Site(work, table(SIZES), tmp_path / "site")
    begun(site)
    head, tree = a_question(work, tmp_path)
    site.answer(wire.pack(head, tree))
    with pytest.raises(ct.errors.CoterieError, match="leaves out clients"):
        site.answer(wire.pack(head | {"round": 1, "clients": head["clients"][1:]}, tree))


def test_nothing_but_the_sum_tells_whose_update_is_a_number(tmp_path: Path) -> None:
    """A model of the server's choice that overflows for some rows alone would be a question about these rows."""
    work = private("exact", rounds=2)
    rows = table(SIZES)
    rows.loc[rows["who"] == "client 02", "label"] = "yes"
    site = Site(work, rows, tmp_path / "site")
    begun(site)
    head, tree = a_question(work, tmp_path)
    for t in tree["down"]["model"].values():
        t.fill_(1e38)
    told, sent = wire.unpack(site.answer(wire.pack(head, tree)))
    assert not sent["sums"][""].any()  # nobody's update was a number
    assert (sorted(told["clients"]), told["dropped"]) == (sorted(head["clients"]), [])


@pytest.mark.parametrize("classes", [["no", "yes"], ["no", "other", "yes"], [], None])
def test_classes_of_the_servers_choice_do_not_make_a_site_name_labels(classes: Any, tmp_path: Path) -> None:
    site = Site(private("exact"), table(SIZES), tmp_path)
    with pytest.raises(ct.errors.CoterieError, match="other classes or columns"):
        begun(site, agreement={"plan": [], "classes": classes})
    row = {"source": "a", "column": "a", "kind": "numeric", "category": None, "fill": 0.0, "mean": 0.0, "scale": 1.0}
    with pytest.raises(ct.errors.CoterieError, match="other classes or columns"):
        begun(site, agreement={"plan": [row | {"note": ""}], "classes": PRIVATE["classes"]})


def test_the_error_of_a_private_question_does_not_tell_what_clients_chose(tmp_path: Path) -> None:
    budget = ct.Privacy(epsilon=8.0, delta=1e-5, clip=0.5, noise="exact")
    work = Job(ct.IFCA(clusters=3, local=FEW), job(ct.FedAvg()).task, PRIVATE, 3, privacy=budget)
    site = Site(work, table(SIZES), tmp_path / "site")
    begun(site)
    _, nodes, _ = deployed(work, table(SIZES), tmp_path, 1)
    head, tree = next(m for m in asked(nodes, 100) if m[0]["updates"])
    head |= {"run": "r", "have": None, "base": None, "number": 2**60, "reduce": ["MeanBy", 2]}
    models = dict(tree["down"]["models"])
    for t in models.values():
        t[:2] = 1e3  # clients that choose the third give nothing, and the server is not told so
    assert not {"info", "why"} & {k for k, v in wire.unpack(site.answer(wire.pack(head, tree)))[0].items() if v}
    tree["down"]["models"] = {name: t[..., :1] for name, t in models.items()}  # nobody can
    with pytest.raises(ct.errors.CoterieError, match=r"could not be worked on; the site's log says why\.$"):
        site.answer(wire.pack(head | {"ask": 1, "number": 2**60 + 1}, tree))


def test_files_of_a_site_and_tickets_of_a_server_are_for_their_owners_alone(tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        work = Job(ct.Ditto(local=FEW), job(ct.FedAvg()).task, PRIVATE, 1, privacy=private("exact").privacy)
        deployed(work, table(SIZES), tmp_path)
    finally:
        os.umask(old)
    found = [*(tmp_path / "site0").rglob("*"), *(tmp_path / "server").rglob("*"), tmp_path / "server"]
    assert len(found) > 12
    assert not [p for p in found if p.stat().st_mode & 0o077]
