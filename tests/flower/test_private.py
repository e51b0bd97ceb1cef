"""Private deployments: clipped at the sites, noisy at the server, one ledger that survives a restart."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
import torch
from together import DATA, SIZES, InProcess, deployed, job, local, split, table

import coterie as ct
from coterie.flower import Job, wire
from coterie.flower.server import Server
from coterie.privacy.receipt import Receipt
from coterie.training.run import Run

PRIVATE: dict[str, Any] = {k: v for k, v in DATA.items() if k != "cluster"} | {
    "scaling": "own",
    "classes": ["no", "perhaps", "yes"],
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
        assert not {"sizes", "n_test"} & set(head)
        if "sums" in tree:
            total = torch.cat([t.flatten() for t in tree["sums"]["model"].values()])
            assert float(total.norm()) <= 0.5 * len(head["clients"]) + 1e-6  # clipped before it left the site


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
        with pytest.raises(ct.CoterieError, match=r"privacy budget|Privacy needs sums"):
            nodes.sites[101].answer(wire.pack(head | change, tree))
    for question in ({"do": "digits", "level": 0, "prefixes": {"a": [0]}}, {"do": "spread", "fills": {"a": 0.0}}):
        with pytest.raises(ct.CoterieError, match="no statistics"):
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
    (tmp_path / "server" / "checkpoint.safetensors").write_bytes(b"")
    nodes = InProcess(work, split(rows, 3), tmp_path)
    with pytest.raises(ct.ConfigError, match="has no sites"):
        deployed(work, rows, tmp_path, nodes=nodes)
    assert not nodes.sent
