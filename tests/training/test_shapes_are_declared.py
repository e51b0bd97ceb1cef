"""Shapes and names carry data: a private run's receipt is void for facts that were read from clients' rows."""

import json
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

import coterie as ct
from coterie.errors import ConfigError
from coterie.learning.standardised import rescaled, standardised
from coterie.privacy import public
from coterie.training.neighbours import Recorder

pytestmark = pytest.mark.filterwarnings("ignore::coterie.errors.CoterieWarning")
EXACT = ct.Privacy(3.0, 1e-6, clip=1.0)
SGD = ct.LocalSGD(steps=1, lr=0.1, batch_size=None)


def arrays(rare=False, weights=False):
    rng = np.random.default_rng(0)
    data = {}
    for i in range(6):
        y = np.arange(8) % 2 if not (rare and i == 0) else np.arange(8) % 3
        data[f"c{i}"] = (rng.normal(size=(8, 3)), y, np.ones(8)) if weights else (rng.normal(size=(8, 3)), y)
    return data


def receipt(fed, algorithm=None):
    return ct.fit(algorithm or ct.FedAvg(SGD), fed, rounds=1, alone=False, privacy=EXACT).receipt


def test_a_class_of_one_client_voids_the_receipt_unless_declared():
    for rare in (False, True):
        found = receipt(ct.Federation.from_arrays(arrays(rare)))
        assert not found.valid
        assert any("the classes came from" in r for r in found.reasons)
    declared = receipt(ct.Federation.from_arrays(arrays(), classes=public([0, 1, 2])))
    assert declared.valid, declared.reasons
    assert "declared public by the user: the classes 0, 1, 2" in declared.public
    by_name = receipt(ct.Federation.from_arrays(arrays()).declare_public("classes", "kind"))
    assert by_name.valid, by_name.reasons


def test_declared_classes_survive_files_and_subsets(tmp_path):
    fed = ct.Federation.from_arrays(arrays(), classes=public([0, 1, 2]))
    fed.save(tmp_path)
    assert receipt(ct.Federation.load(tmp_path)).valid
    assert not receipt(ct.Federation.load(ct.Federation.from_arrays(arrays()).save(tmp_path))).valid


def test_groups_and_weights_and_kind():
    clusters = {f"c{i}": i % 2 for i in range(6)}
    fed = ct.Federation.from_arrays(arrays(), classes=public([0, 1]), clusters=clusters)
    assert receipt(fed).valid
    assert any("groups" in r for r in receipt(fed, ct.FineTuned(base=ct.Oracle(SGD))).reasons)
    assert receipt(fed.declare_public("clusters"), ct.Oracle(SGD)).valid
    weighed = ct.Federation.from_arrays(arrays(weights=True), classes=public([0, 1]))
    assert receipt(weighed).valid  # every client divides its weights by its own smallest
    numbers = {c: (x, x[:, 0]) for c, (x, _) in arrays().items()}
    assert any("classes or numbers" in r for r in receipt(ct.Federation.from_arrays(numbers)).reasons)
    assert receipt(ct.Federation.from_arrays(numbers, kind="regression")).valid


def test_an_unknown_fact_is_refused():
    with pytest.raises(ConfigError, match="Facts to declare public"):
        ct.Federation.from_arrays(arrays()).declare_public("colours")


def test_a_private_run_shows_the_groups_only_to_algorithms_that_say_they_read_them():
    clusters = {f"c{i}": i % 2 for i in range(6)}
    fed = ct.Federation.from_arrays(arrays(), classes=public([0, 1]), clusters=clusters)
    seen = []

    @dataclass(frozen=True)
    class Curious(ct.FedAvg):
        def init(self, task, population, seed, start):
            seen.append(population.clusters)
            return super().init(task, population, seed, start)

    @dataclass(frozen=True)
    class Honest(Curious):
        @property
        def reads_clusters(self):
            return True

    assert receipt(fed, public(Curious(SGD))).valid
    found = receipt(fed, public(Honest(SGD)))
    assert any("the groups of clients" in r for r in found.reasons)
    assert seen[0] is None
    assert seen[1].tolist() == [0, 1, 0, 1, 0, 1]
    assert not receipt(fed, ct.FineTuned(base=ct.Oracle(SGD))).valid


def test_a_choice_of_clients_must_be_declared_anew():
    fed = ct.Federation.from_arrays(arrays(), classes=public([0, 1])).declare_public("clients")
    assert receipt(fed.subset(fed.clients[::-1])).valid  # the same clients in another order
    some = fed.subset(fed.clients[:5])
    assert any("which clients take part" in r for r in receipt(some).reasons)
    assert receipt(some.declare_public("clients")).valid


def test_one_clients_validation_rows_leave_the_others_hold_out():
    split = {c: {"train": (x, y)} for c, (x, y) in arrays().items()}
    x, y = arrays()["c0"]
    usual, other = (
        ct.Federation.from_arrays(split | {"c0": mine}, classes=public([0, 1])).holdout(0.25, seed=3)
        for mine in ({"train": (x, y)}, {"train": (x[:5], y[:5]), "validation": (x[5:], y[5:])})
    )
    assert other.n_test.tolist() == [3, 2, 2, 2, 2, 2]
    for client in usual.clients[1:]:
        for a, b in zip(
            usual.train(client) + usual.test(client), other.train(client) + other.test(client), strict=True
        ):
            assert torch.equal(a, b)


def test_targets_standardised_by_all_rows_void_the_receipt_and_a_public_range_is_listed():
    numbers = {c: (x, 100 + 9 * x[:, 0]) for c, (x, _) in arrays().items()}
    fed = ct.Federation.from_arrays(numbers, kind=public("regression"))
    task = ct.Task.default(fed)
    looked = ct.fit(ct.FedAvg(SGD), fed, standardised(task, fed), rounds=1, alone=False, privacy=EXACT).receipt
    assert any("standardised by statistics of all clients' rows" in r for r in looked.reasons)
    ranged = ct.fit(ct.FedAvg(SGD), fed, rescaled(task, 50, 150), rounds=1, alone=False, privacy=EXACT).receipt
    assert ranged.valid, ranged.reasons
    assert "declared public by the user: the range of the target, 50 to 150" in ranged.public


def test_characters_of_texts_are_declared_or_void(tmp_path):
    def folder(name, text):
        (tmp_path / name).mkdir()
        users = {f"u{i}": {"x": ["ab", "ba", "aa", "bb"] if i else [text] * 4, "y": [0, 1, 0, 1]} for i in range(5)}
        (tmp_path / name / "all.json").write_text(json.dumps({"user_data": users}))
        return tmp_path / name

    task = ct.Task(Letters)
    usual, rare = folder("usual", "ab"), folder("rare", "+a")
    told = {"classes": public([0, 1]), "characters": public("abc")}
    one, two = (ct.Federation.from_leaf(f, **told) for f in (usual, rare))
    assert all(torch.equal(one.train(u)[0], two.train(u)[0]) for u in one.clients[1:])
    assert two.train("u0")[0][0].tolist() == [0, 1]
    void, valid = (
        ct.fit(ct.FedAvg(SGD), fed, public(task), rounds=1, alone=False, privacy=EXACT).receipt
        for fed in (ct.Federation.from_leaf(usual, classes=public([0, 1])), two)
    )
    assert any("characters" in r for r in void.reasons)
    assert valid.valid, valid.reasons


def test_weights_of_one_client_do_not_reach_the_others_messages():
    sent = []
    for mine in (1.0, 1e-9):
        data = arrays(weights=True)
        x, y, w = data["c0"]
        data["c0"] = (x, y, mine * np.linspace(1, 3, len(w)))
        recorder, fed = Recorder(), ct.Federation.from_arrays(data, classes=public([0, 1]))
        made = ct.fit(ct.FedAvg(SGD), fed, rounds=1, alone=False, privacy=EXACT, channels=[public(recorder)])
        assert made.receipt.valid, made.receipt.reasons
        sent.append(recorder.sent)
    for client in fed.clients[1:]:
        for (_, a), (_, b) in zip(sent[0][client], sent[1][client], strict=True):
            assert torch.equal(a, b)


def test_the_order_of_clients_does_not_say_who_is_drawn():
    rng = np.random.default_rng(4)
    names, drawn = [f"c{i}" for i in range(17_000)], []
    x, y = rng.normal(size=(17_000, 1, 2)).astype(np.float32), np.arange(17_000) % 2
    for order in (np.arange(17_000), np.roll(np.arange(17_000), -1)):  # the first client's rows stand last
        fed = ct.Federation.from_flat(
            x[order, 0], y[order], sizes=np.ones(17_000), clients=[names[i] for i in order], test_fraction=0.0,
            classes=public([0, 1]),
        )  # fmt: skip
        recorder = Recorder()
        made = ct.fit(
            ct.FedAvg(SGD),
            fed,
            rounds=1,
            cohort=5,
            alone=False,
            privacy=EXACT,
            channels=[public(recorder)],
            progress=False,
        )
        assert made.receipt.valid, made.receipt.reasons
        drawn.append(set(recorder.sent))
    assert drawn[0] == drawn[1]
    assert len(drawn[0]) == 5


class Letters(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 2)

    def forward(self, x):
        return self.table(x).sum(1)
