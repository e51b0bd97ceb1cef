"""Deployments with secure sums: the numbers of a rehearsal in one process, and sites that know whom they trust."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any

import numpy as np
import pytest
import torch
from conformance_settings import configured
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from known_noise import gaussian
from loopback import Deployment, free_port
from together import SIZES, InProcess, deployed, job, split, table
from torch import nn

import coterie as ct
from coterie.base.tree import flatten, tree_map
from coterie.cli.flower import job_of
from coterie.errors import ConfigError, CoterieError, EngineError
from coterie.flower import Failure, Job, wire
from coterie.flower.project import write_project
from coterie.flower.rehearsal import RehearsalEngine
from coterie.privacy.mechanisms.noise import ExactNoise
from coterie.privacy.receipt import Receipt
from coterie.secure.identity import Identity
from coterie.secure.settings import Secure
from coterie.training import checkpoint

SITES = 5
DATA: dict[str, Any] = {
    "client": "who", "target": "label", "features": list("abcd"), "kind": "classification", "one_class": "allow",
    "scaling": "own", "classes": ["no", "perhaps", "yes"], "public": ["clients"],
}  # fmt: skip
PRIVATE = ct.Privacy(epsilon=30.0, delta=1e-3, clip=1.0)
pytestmark = pytest.mark.filterwarnings("ignore:In this private run")


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """No machine loses its power here, so nothing waits for the disk."""
    monkeypatch.setattr("os.fsync", lambda file: None)


def keys(folder: Path, count: int = SITES) -> tuple[list[Path], list[str]]:
    """Key files as ssh-keygen writes them, and the lines of their public halves."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"key{i}" for i in range(count)]
    for file in files:
        if not file.exists():
            text = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
            file.write_bytes(text)
    return files, [f"{Identity.load(file).public} hospital {i}" for i, file in enumerate(files)]


def secured(
    algorithm: Any, folder: Path, rounds: int = 3, privacy: Any = None, cohort: Any = None, **options: Any
) -> tuple[Job, InProcess]:
    files, lines = keys(folder / "keys")
    work = Job(
        algorithm,
        job(ct.FedAvg()).task,
        DATA,
        rounds,
        privacy=privacy,
        least=1,
        cohort=cohort,
        secure=Secure(lines, **options),
    )
    return work, InProcess(work, split(table(SIZES), SITES), folder, files)


def rehearsed(work: Job, **absent: Any) -> ct.Result:
    """The same in one process."""
    rows = table(SIZES)
    fed = ct.Federation.from_frame(rows, **{k: v for k, v in DATA.items() if k != "public"})
    engine = RehearsalEngine(replace(work.secure, sites=SITES), **absent)  # type: ignore[type-var]
    how: dict[str, Any] = {"rounds": work.rounds, "seed": work.seed, "cohort": work.cohort, "alone": False}
    return ct.fit(work.algorithm, fed, work.task(fed), engine=engine, privacy=work.privacy, progress=False, **how)


def same(state: Any, here: ct.Result) -> None:
    """Equal to the last bit."""
    mine, other = flatten(vars(state)), flatten(vars(here.state))
    assert mine.keys() == other.keys()
    for name, t in other.items():
        if isinstance(t, torch.Tensor):
            np.testing.assert_array_equal(mine[name].numpy(), t.numpy(), name)


def known(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ExactNoise, "gaussian", gaussian)


@pytest.mark.parametrize("name", ["fedavg", "ifca", "scaffold"])
def test_a_deployment_gives_the_numbers_of_a_rehearsal(name: str, tmp_path: Path) -> None:
    work, nodes = secured(configured(name), tmp_path)
    run, nodes, told = deployed(work, None, tmp_path, SITES, nodes=nodes)
    here = rehearsed(work)
    for k, t in flatten(vars(here.state)).items():
        if isinstance(t, torch.Tensor):
            torch.testing.assert_close(flatten(vars(run.state))[k], t, rtol=1e-4, atol=1e-4)
    assert told["scores"]["accuracy"] == pytest.approx(here.scores()["accuracy"].mean(), abs=1e-6)
    assert run.history[-1]["loss"] == pytest.approx(here.history["loss"].iloc[-1], rel=1e-4)


def test_private_clusters_end_with_the_same_integers_when_a_site_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known(monkeypatch)
    work, nodes = secured(ct.IFCA(clusters=2, local=ct.LocalSGD(steps=2, lr=0.1)), tmp_path, privacy=PRIVATE)

    def change(node: int, asked: dict[str, Any], answer: Any) -> Any:
        return Failure("killed") if (asked["do"], asked.get("round"), node) == ("ask", 1, 102) else answer

    nodes.change = change
    run, nodes, _ = deployed(work, None, tmp_path, SITES, nodes=nodes)
    same(run.state, rehearsed(work, absent={1: [2]}))
    receipt = Receipt.from_json((tmp_path / "server" / "receipt.json").read_text())
    assert receipt.valid, receipt.reasons
    assert receipt.trust.startswith(
        "the server saw only sums over at least 4 sites; each sum carries noise for (ε, δ) against a server that colludes "
        "with at most 1 sites"
    )
    assert receipt.who_sees_what in receipt.trust
    assert receipt.verify().fault == ""
    events = (tmp_path / "server" / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["site"] for line in events] == ["site 3"]


def test_nothing_that_leaves_a_site_holds_its_numbers(tmp_path: Path) -> None:
    work, nodes = secured(configured("ifca"), tmp_path, rounds=2)
    deployed(work, None, tmp_path, SITES, nodes=nodes)
    kinds = set()
    for _, block in nodes.got:
        head, tree = wire.unpack(block)
        assert set(tree) <= {"masked"}
        kinds.add(tuple(sorted(head)))
        if tree:
            cells = np.bincount(tree["masked"].numpy().view(np.uint8), minlength=256)
            assert cells.max() < 8 * max(cells.mean(), 4)
    allowed = {
        "context",
        "tag",
        "bundle",
        "signature",
        "boxes",
        "shares",
        "ready",
        "clients",
        "columns",
        "labels",
        "settings",
        "table",
    }
    assert {field for kind in kinds for field in kind} <= allowed | {"sizes", "n_valid", "n_test", "key"}


@pytest.mark.parametrize("when", ["keys", "shares", "ask", "open"])
def test_server_and_sites_may_start_again_in_the_middle(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known(monkeypatch)
    work, nodes = secured(ct.FedAvg(local=ct.LocalSGD(steps=2, lr=0.1)), tmp_path, privacy=PRIVATE)

    def die(node: int, asked: dict[str, Any], answer: Any) -> Any:
        step = asked.get("told", {}).get("step") if asked["do"] == "secure" else asked["do"]
        if step == when and node == 103 and (when in ("keys", "shares") or asked.get("round", 1) == 1):
            nodes.change = None
            raise KeyboardInterrupt
        return answer

    nodes.change = die
    with pytest.raises(KeyboardInterrupt):
        deployed(work, None, tmp_path, SITES, nodes=nodes)
    for node in sorted(nodes.sites):
        nodes.restart(node)
    run, nodes, told = deployed(work, None, tmp_path, SITES, nodes=nodes)
    assert told["finished"]
    same(run.state, rehearsed(work))
    receipt = Receipt.from_json((tmp_path / "server" / "receipt.json").read_text())
    assert receipt.valid, receipt.reasons
    assert receipt.releases[0]["count"] == 3  # what was paid for the sum that was begun is not paid again


def test_a_site_answers_no_question_without_a_secure_sum(tmp_path: Path) -> None:
    work, nodes = secured(ct.FedAvg(), tmp_path, rounds=1)
    deployed(work, None, tmp_path, SITES, nodes=nodes)
    head, tree = next(m for m in (wire.unpack(m) for n, m in nodes.sent if n == 101) if m[0]["do"] == "ask")
    with pytest.raises(ConfigError, match="differ in whether sums are secure"):
        nodes.sites[101].answer(wire.pack(head | {"secure": None, "number": 1 << 70}, tree))
    with pytest.raises(CoterieError, match="shows it every client's reply"):
        nodes.sites[101].answer(wire.pack(head | {"reduce": None, "number": 1 << 70}, tree))
    with pytest.raises(CoterieError, match="used once"):
        nodes.sites[101].answer(wire.pack(head | {"number": 1 << 70}, tree))


def test_a_sum_without_noise_has_clients_of_as_many_sites_as_it_needs(tmp_path: Path) -> None:
    """The zeros of sites that are not asked would hide nobody: whoever is asked would be seen."""
    work, nodes = secured(ct.FedAvg(), tmp_path, cohort=3)
    with pytest.raises(
        EngineError, match=r"are at [123] sites, and without a privacy budget a secure sum needs clients of 4"
    ):
        deployed(work, None, tmp_path, SITES, nodes=nodes)
    with pytest.raises(EngineError, match="clients of 4 sites"):
        rehearsed(work)
    assert not any(wire.unpack(message)[0]["do"] == "ask" for _, message in nodes.sent)


def test_a_server_that_asks_one_site_alone_gets_no_zeros_from_the_others(tmp_path: Path) -> None:
    work, nodes = secured(ct.FedAvg(), tmp_path, rounds=1)
    victim = 103

    def alone(node: int, message: bytes) -> bytes:
        head, tree = wire.unpack(message)
        return wire.pack(head | {"clients": []}, tree) if head["do"] == "ask" and node != victim else message

    real = nodes.exchange
    nodes.exchange = lambda messages, *more, **options: real(  # type: ignore[method-assign]
        {node: alone(node, message) for node, message in messages.items()}, *more, **options
    )
    with pytest.raises(EngineError, match="1 of 5 sites answered"):
        deployed(work, None, tmp_path, SITES, nodes=nodes)
    assert "would hide nobody" in (tmp_path / "server" / "events.jsonl").read_text()


def test_a_site_whose_clients_give_nothing_sends_no_zeros(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work, nodes = secured(ct.FedAvg(local=ct.LocalSGD(steps=1, lr=0.1)), tmp_path, rounds=1)
    real = nodes.exchange

    def broken(node: int, message: bytes) -> bytes:
        head, tree = wire.unpack(message)
        if head["do"] != "ask" or node != 103:
            return message
        return wire.pack(head, {k: tree_map(lambda t: t * float("nan"), part) for k, part in tree.items()})

    nodes.exchange = lambda messages, *more, **options: real(  # type: ignore[method-assign]
        {node: broken(node, message) for node, message in messages.items()}, *more, **options
    )
    deployed(work, None, tmp_path, SITES, nodes=nodes)
    assert "No client here gives a number" in (tmp_path / "server" / "events.jsonl").read_text()


def test_a_site_adds_up_no_more_groups_than_a_run_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a group per client the sums would be those of single clients."""
    monkeypatch.setattr("coterie.flower.guard.MOST_GROUPS", 2)
    work, nodes = secured(ct.FedAvg(), tmp_path, rounds=1)
    deployed(work, None, tmp_path, SITES, nodes=nodes)
    head, tree = next(m for m in (wire.unpack(m) for n, m in nodes.sent if n == 101) if m[0]["do"] == "ask")
    with pytest.raises(ConfigError, match="at most 2 groups"):
        nodes.sites[101].answer(wire.pack(head | {"reduce": ["MeanBy", 12], "number": 1 << 70}, tree))


def test_a_site_trusts_the_keys_that_it_saw_first_or_that_its_owner_names(tmp_path: Path) -> None:
    work, nodes = secured(ct.FedAvg(), tmp_path, rounds=1)
    deployed(work, None, tmp_path, SITES, nodes=nodes)
    files, lines = keys(tmp_path / "keys", SITES + 1)
    other = replace(work, secure=Secure([*lines[:4], lines[5]]))
    again = InProcess(other, split(table(SIZES), SITES), tmp_path, [*files[:4], files[5]])
    with pytest.raises(EngineError, match="0 of 5 sites took part"):
        deployed(other, None, tmp_path / "again", SITES, nodes=again)
    assert "are not those that this site trusts" in (tmp_path / "again" / "server" / "events.jsonl").read_text()
    (tmp_path / "peers").write_text("\n".join([*lines[:4], lines[5]]))
    for site in again.sites.values():
        site.peers = tmp_path / "peers"
    assert deployed(other, None, tmp_path / "third", SITES, nodes=again)[2]["finished"]


def test_keys_that_are_missing_or_unknown_are_one_sentence(tmp_path: Path) -> None:
    work, nodes = secured(ct.FedAvg(), tmp_path, rounds=1)
    files, _ = keys(tmp_path / "others")
    for key, why in (
        (None, "no key to sign with"),
        (files[0], "not among those of"),
        (nodes.sites[100].key, "the key of site 1"),
    ):
        nodes.sites[102].key = key
        with pytest.raises(EngineError, match=why):
            deployed(work, None, tmp_path / "x", SITES, nodes=nodes)


def test_fewer_sites_than_the_least_end_the_run_with_a_sentence(tmp_path: Path) -> None:
    work, nodes = secured(ct.FedAvg(), tmp_path)
    nodes.change = lambda node, asked, answer: Failure("gone") if asked["do"] == "ask" and node > 102 else answer
    with pytest.raises(EngineError, match=r"^3 of 5 sites answered, and a secure sum needs 4\. Start again"):
        deployed(work, None, tmp_path, SITES, nodes=nodes)


def test_algorithms_whose_server_needs_replies_are_refused_before_the_run() -> None:
    with pytest.raises(ConfigError, match="CFL shows it every client's reply"):
        Job(ct.CFL(), nn.Identity, DATA, secure=Secure([Identity.made().public for _ in range(3)]))


CONFIG = """\
[data]
client = "who"
target = "label"
features = ["a", "b", "c", "d"]
kind = "classification"
one_class = "allow"
scaling = "own"
classes = ["no", "perhaps", "yes"]
public = ["clients"]

[algorithm]
name = "ifca"
clusters = 2
[algorithm.local]
steps = 3
lr = 0.1
batch_size = 8

[privacy]
epsilon = 30.0
delta = 1e-3
clip = 1.0

[secure]
sites = {sites}

[run]
rounds = 4
"""


@pytest.mark.flower
@pytest.mark.skipif(find_spec("flwr") is None, reason="flwr is not installed; `make test-flower` installs it")
@pytest.mark.skipif(not (which("openssl") and which("ssh-keygen")), reason="openssl and ssh-keygen are needed")
def test_five_supernodes_of_which_one_is_killed_in_a_round_train_private_clusters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over TLS, with the SuperNodes' own keys: the integers of the rehearsal, and a receipt that trusts no server."""
    (tmp_path / "deployment").mkdir()
    flower, ports = Deployment(tmp_path / "deployment"), [free_port() for _ in range(SITES)]
    try:
        flower.superlink()
        lines = []
        for i, (port, rows) in enumerate(zip(ports, split(table(SIZES), SITES), strict=True)):
            rows.to_csv(tmp_path / f"site{i}.csv", index=False)
            key = flower.key(f"key{i}")
            lines.append(key.with_suffix(".pub").read_text().strip())
            where = {"table": str(tmp_path / f"site{i}.csv"), "folder": str(tmp_path / f"site{i}")}
            flower.supernode(f"supernode{i}", key, port, **where, key=str(key))
        flower.workers(ports, "known_noise.py")
        text = CONFIG.format(sites=json.dumps(lines))
        write_project(tmp_path / "app", text, SITES)
        (tmp_path / "site2").mkdir()
        (tmp_path / "site2" / "wait").touch()
        out = tmp_path / "out"
        flower.run(tmp_path / "app", out=str(out), timeout=400.0)
        flower.wait((tmp_path / "site2" / "waiting").exists, 500, "the second round")
        flower.kill("supernode2")
        flower.wait((out / "deployment.json").exists, 500, "the end of the run")
    finally:
        flower.stop()
    known(monkeypatch)
    work = job_of(text, tmp_path)
    here = rehearsed(work, absent={1: [2], 2: [2], 3: [2]})
    tensors, about = checkpoint.read(out / checkpoint.FILE)
    assert about["done"] == 4
    for name, t in flatten(here.state.models).items():
        np.testing.assert_array_equal(tensors[f"state/models/{name}"].numpy(), t.numpy())
    receipt = Receipt.from_json((out / "receipt.json").read_text())
    assert receipt.valid, receipt.reasons
    assert receipt.trust.startswith("the server saw only sums over at least 4 sites; each sum carries noise for (ε, δ)")
    assert receipt.verify(out / "ledger.sqlite").sentence.startswith(
        "Checked: the numbers follow from the releases, and"
    )
