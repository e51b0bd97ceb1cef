"""Algorithms, channels, callbacks, samplers, networks and mechanisms that break what a receipt promises.

Each of them once earned a valid receipt. Each is now refused before anything is released, or its receipt is not valid."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import coterie as ct
from coterie.base.tree import row
from coterie.exchange.channels.base import Channel, Where
from coterie.exchange.messages import Ask, Context, From, Ints, MeanBy, Up
from coterie.privacy import (
    BudgetSpent,
    ExactNoise,
    GroupSums,
    JointSum,
    Ledger,
    LedgerError,
    non_private,
    public,
    write_receipt,
)
from coterie.training.neighbours import Recorder
from coterie.training.private_run import Session

pytestmark = pytest.mark.filterwarnings("ignore::coterie.errors.CoterieWarning")
EXACT = ct.Privacy(3.0, 1e-6, clip=0.5)
FEW = ct.LocalSGD(steps=1, lr=0.1, batch_size=None)


def run(algorithm: Any, fed: ct.Federation, task: Any, privacy: ct.Privacy = EXACT, **options: Any) -> ct.Result:
    how: dict[str, Any] = {"rounds": 2, "alone": False, "progress": False, "privacy": privacy}
    return ct.fit(algorithm, fed, task, **how | options)


@dataclass(frozen=True)
class State:
    model: Any
    told: Any = field(default_factory=lambda: torch.zeros(3, dtype=torch.float64))


@dataclass(frozen=True)
class Attack(ct.exchange.Algorithm):
    """Federated averaging that asks or remembers more than it may."""

    kind: str
    asks_per_round: int = 1  # type: ignore[assignment]

    def init(self, task: Any, population: Any, seed: int, start: Any) -> State:
        return State(start)

    def round(self, state: State, cohort: Any) -> Any:
        who = {"everyone": np.arange(12), "five times": np.repeat(cohort.clients, 5)}.get(self.kind, cohort.clients)
        for _ in range(2 if self.kind == "two asks" else 1):
            updates = {"model": From("model")}
            reply = yield Ask(self.train, who, {"model": state.model}, reduce=MeanBy(), updates=updates)
        total = reply.info.get("loss", (0.0, 0))[0]
        told = torch.tensor([total, float(reply.bytes_up), float(len(reply.lost))], dtype=torch.float64)
        return replace(state, model=row(reply.values["model"], 0), told=told)

    def train(self, ctx: Context, model: Any) -> Up:
        moved, loss = FEW.fit(ctx, model)
        return Up({"model": moved}, info={"loss": loss})

    def personal(self, ctx: Context, state: State) -> Any:
        return state.model


@dataclass(frozen=True)
class Remembers(Attack):
    """Keeps in its state who took part last."""

    kind: str = "plain"

    def round(self, state: State, cohort: Any) -> Any:
        new = yield from super().round(state, cohort)
        return replace(new, told=torch.from_numpy(cohort.clients))


# ---- algorithms ------------------------------------------------------------------------------------------------------


def test_a_question_to_everyone_reaches_the_drawn_clients_only(
    fed: ct.Federation, task: ct.Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server does not know whom a Poisson cohort has; of a cohort of fixed size it may not ask others."""
    with pytest.raises(ct.errors.ConfigError, match="cohort only"):
        run(public(Attack("everyone")), fed, task, cohort=3)
    drawn = np.array([1, 4, 7])
    monkeypatch.setattr(Session, "drawn", lambda session, *_: (setattr(session, "_asked", 0), drawn)[1])
    kept = Recorder()
    result = run(public(Attack("everyone")), fed, task, cohort=0.2, channels=[public(kept)])
    assert set(kept.sent) == set(fed.clients[drawn])
    assert result.receipt.releases[0]["sampling"] == 0.2


def test_the_server_is_not_told_who_was_drawn(fed: ct.Federation, task: ct.Task) -> None:
    """A state that keeps the cohort would show whom the noise is to hide."""
    for cohort in (0.2, 0.01):
        result = run(public(Remembers()), fed, task, cohort=cohort)
        assert result.state.told.tolist() == list(range(len(fed)))


def test_asking_a_client_five_times_is_refused(fed: ct.Federation, task: ct.Task) -> None:
    with pytest.raises(ct.errors.ConfigError, match="each client once"):
        run(public(Attack("five times")), fed, task)


def test_an_ask_more_than_planned_is_refused_before_it_is_released(fed: ct.Federation, task: ct.Task) -> None:
    with pytest.raises(ct.errors.ConfigError, match="would be one more"):
        run(public(Attack("two asks")), fed, task)


def test_two_asks_of_one_cohort_are_not_two_samples(fed: ct.Federation, task: ct.Task) -> None:
    """Sampling is drawn once per round; its releases cost as much as if everybody took part."""
    result = run(public(Attack("two asks", asks_per_round=2)), fed, task, cohort=0.2)
    assert result.receipt is not None
    (line,) = result.receipt.releases
    assert line["sampling"] == 1.0
    assert line["count"] == 4
    assert line["noise_multiplier"] >= ct.privacy.noise_multiplier(3.0, 1e-6, 4) * (1 - 1e-6)
    assert any("share one draw" in text for text in result.receipt.public)


def test_the_server_sees_no_clear_diagnostics(fed: ct.Federation, task: ct.Task) -> None:
    result = run(public(Attack("plain")), fed, task, channels=[ct.exchange.Dropout(0.5)])
    assert not result.state.told.any()
    assert result.history["loss"].notna().all()  # whoever runs the simulation still does


def test_a_class_of_ones_own_needs_to_be_declared(fed: ct.Federation, task: ct.Task) -> None:
    fed = fed.declare_public("clusters")  # an algorithm of one's own may read them
    result, declared = (run(made, fed, task) for made in (Attack("plain"), public(Attack("plain"))))
    assert not result.receipt.valid
    assert "Attack" in result.receipt.reasons[0]
    assert declared.receipt.valid, declared.receipt.reasons
    assert "declared public by the user: the algorithm" in declared.receipt.public


@dataclass(frozen=True)
class Captured(ct.FedAvg):
    """A subclass of a registered algorithm."""


def test_neither_a_subclass_nor_an_object_of_ones_own_among_the_settings_passes(
    fed: ct.Federation, task: ct.Task
) -> None:
    for made in (Captured(FEW), ct.FineTuned(base=Captured(FEW))):
        assert not run(made, fed, task).receipt.valid


def test_settings_tried_on_clear_rows_void_the_receipt(make_fed: Any, task: ct.Task) -> None:
    for seed, look in enumerate(("grid", "fit_seeds")):
        fed = make_fed(seed=seed).declare_public("classes", "kind")
        assert run(ct.FedAvg(FEW), fed, task).receipt.valid
        if look == "grid":
            ct.grid(ct.FedAvg(FEW), {"local.lr": [0.1, 0.2]}, fed, task, rounds=2)
        else:
            ct.fit_seeds(ct.FedAvg(FEW), fed, task, seeds=2, rounds=1, alone=False, progress=False)
        receipt = run(ct.FedAvg(FEW), fed, task).receipt
        assert not receipt.valid
        assert look in receipt.reasons[0]
        assert run(public(ct.FedAvg(FEW)), fed, task).receipt.valid


@dataclass(frozen=True)
class Measures(ct.FedAvg):
    """Keeps the sizes that it is told of."""

    seen: list[Any] = field(default_factory=list)

    def init(self, task: Any, population: Any, seed: int, start: Any) -> Any:
        self.seen.append(population.sizes.tolist())
        return super().init(task, population, seed, start)


def test_a_private_algorithm_is_not_told_how_many_rows_clients_have(make_fed: Any, task: ct.Task) -> None:
    fed = make_fed()
    for privacy, told in ((None, fed.n_train.tolist()), (EXACT, [1] * len(fed))):
        made = Measures(FEW)
        run(made, fed, task, privacy, rounds=0)
        assert made.seen
        assert all(sizes == told for sizes in made.seen)


# ---- what a killed run leaves ----------------------------------------------------------------------------------------


def _session(out: Path | None, **changes: Any) -> Session:
    how = {
        "algorithm": Attack("", 2),
        "sampler": ct.training.Everyone(),
        "n_users": 12,
        "rounds": 3,
        "out": out,
        "state": None,
    }
    return Session.open(EXACT, **how | changes)


def test_a_run_that_died_before_its_first_release_holds_no_budget(tmp_path: Path) -> None:
    first = _session(tmp_path)  # and it dies: nobody closes its ledger
    assert _session(tmp_path).ledger.run == first.ledger.run


def test_of_two_copies_of_a_folder_one_goes_on(tmp_path: Path, fed: ct.Federation, task: ct.Task) -> None:
    budget, first, copy = replace(EXACT, ledger=tmp_path / "book.sqlite"), tmp_path / "first", tmp_path / "copy"

    def dies(live: Any) -> None:
        if live.done == 2:
            raise OSError("the power is gone")

    with pytest.raises(OSError, match="the power is gone"):
        run(ct.FedAvg(FEW), fed, task, budget, rounds=4, out=first, callbacks=[dies])
    shutil.copytree(first, copy)
    assert run(ct.FedAvg(FEW), fed, task, budget, rounds=4, out=first, resume=True).about["rounds"] == 3
    with pytest.raises(LedgerError, match="the run was resumed from another copy of its folder"):
        run(ct.FedAvg(FEW), fed, task, budget, rounds=4, out=copy, resume=True)


def test_only_releases_that_no_saved_round_holds_are_called_lost() -> None:
    session, spent = _session(None), BudgetSpent("the budget is 3")
    release = session.releases.mechanism(1, 4).event()
    for _ in range(4):
        session.ledger.book(release)
    assert session.why_spent(2, spent) == "the budget is 3"  # two rounds of two asks
    session.ledger.book(release)
    assert ": 1 booked release died with the process" in session.why_spent(2, spent)
    assert ": 3 booked releases died with the process" in session.why_spent(1, spent)


# ---- channels, samplers, callbacks -----------------------------------------------------------------------------------


class Twice(Channel):
    """Asks every client twice."""

    separate = True

    def ask(self, ask: Ask, where: Where) -> Ask:
        return replace(ask, clients=np.repeat(ask.clients, 2))


class Peeks(Channel):
    separate = True


def test_a_channel_can_neither_double_clients_nor_pass_unnamed(fed: ct.Federation, task: ct.Task) -> None:
    with pytest.raises(ct.errors.ConfigError, match="each client once"):
        run(ct.FedAvg(FEW), fed, task, channels=[Twice()])
    assert not run(ct.FedAvg(FEW), fed, task, channels=[Peeks()]).receipt.valid
    assert run(ct.FedAvg(FEW), fed, task, channels=[public(Peeks())]).receipt.valid


def test_what_was_computed_from_clear_data_stays_so_in_a_list(fed: ct.Federation, task: ct.Task) -> None:
    seen = non_private(Peeks(), "the channel was tuned on rows")
    receipt = run(ct.FedAvg(FEW), fed, task, channels=[public(Peeks()), seen]).receipt
    assert receipt.reasons == ("unaccounted: the channel was tuned on rows",)


class Mixes(Channel):
    """Does not say that what one client sends depends on no other."""


def test_a_channel_that_may_mix_clients_voids_the_receipt_whoever_declares_it(
    fed: ct.Federation, task: ct.Task
) -> None:
    (reason,) = run(ct.FedAvg(FEW), fed, task, channels=[public(Mixes())]).receipt.reasons
    assert "with the channel Mixes, what one client sends may depend on other clients' data" in reason


class AsksMore(Channel):
    """Makes a question of which the server would see single replies, or more than updates."""

    separate = True

    def __init__(self, **changes: Any) -> None:
        self.changes = changes

    def ask(self, ask: Ask, where: Where) -> Ask:
        return replace(ask, **self.changes)


def test_a_question_that_a_channel_changed_is_looked_at_again(fed: ct.Federation, task: ct.Task) -> None:
    with pytest.raises(ct.errors.ConfigError, match="shows the server every client's reply"):
        run(ct.FedAvg(FEW), fed, task, channels=[public(AsksMore(reduce=None))])
    with pytest.raises(ct.errors.ConfigError, match="also sends 'more'"):
        run(ct.FedAvg(FEW), fed, task, channels=[public(AsksMore(auxiliary=("more",)))])


class Always(ct.training.Poisson):
    def sample(self, federation: ct.Federation, seed: int, round: int) -> Ints:
        return np.arange(len(federation))


def test_a_subclass_of_a_sampler_is_refused(fed: ct.Federation, task: ct.Task) -> None:
    with pytest.raises(ct.errors.ConfigError, match="how clients are sampled"):
        run(ct.FedAvg(FEW), fed, task, cohort=Always(0.01))


def test_secret_cohorts_have_the_accounted_probability(monkeypatch: pytest.MonkeyPatch, fed: ct.Federation) -> None:
    """Included exactly below rate · 2⁶⁴; the draws come from the operating system."""
    session = Session.open(EXACT, ct.FedAvg(FEW), ct.training.Poisson(0.25), len(fed), 1, None, None)
    edge = [2**62 - 1, 2**62, 2**62 + 1, 0] * 3
    monkeypatch.setattr("coterie.training.private_run.os.urandom", lambda n: np.array(edge, np.uint64).tobytes())
    assert session.drawn(fed, 0, 0).tolist() == [i for i, u in enumerate(edge) if u < 2**62]
    monkeypatch.undo()
    drawn = [len(session.drawn(fed, 0, r)) for r in range(400)]
    assert abs(np.mean(drawn) - 3.0) < 4 * np.std(drawn) / 20


def overwrite(live: Any) -> None:
    live.state = replace(live.state, model={k: t + 1 for k, t in live.state.model.items()})


def write_into(live: Any) -> None:
    next(iter(live.state.model.values())).add_(1.0)


def early(live: Any) -> None:
    if live.history[-1]["loss"] < 100:
        live.stop()


@pytest.mark.parametrize("callback", [overwrite, write_into, early])
def test_a_callback_voids_the_receipt_and_one_that_writes_always_does(
    callback: Any, fed: ct.Federation, task: ct.Task
) -> None:
    assert not run(ct.FedAvg(FEW), fed, task, callbacks=[callback]).receipt.valid
    declared = run(ct.FedAvg(FEW), fed, task, callbacks=[public(callback)]).receipt
    assert declared.valid == (callback is early)  # whether it decides by clear values is its user's word
    if declared.valid:
        assert "declared public by the user: the callback early" in declared.public


def test_a_callback_that_changes_a_plain_value_of_the_state_voids_the_receipt(
    fed: ct.Federation, task: ct.Task
) -> None:
    def restart(live: Any) -> None:
        live.state = replace(live.state, started=False)

    receipt = run(ct.IFCA(clusters=2, local=FEW), fed, task, rounds=1, callbacks=[public(restart)]).receipt
    assert receipt.reasons == ("unaccounted: a callback changed the server's state",)


# ---- networks and starts ---------------------------------------------------------------------------------------------


def test_a_network_with_weights_and_a_loss_of_ones_own_need_to_be_declared(fed: ct.Federation, task: ct.Task) -> None:
    kept = nn.Linear(4, 3)

    def pretrained() -> nn.Module:
        made = nn.Linear(4, 3)
        made.load_state_dict(kept.state_dict())
        return made

    def loss(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs, y, reduction="none")

    for made in (ct.Task(pretrained), ct.Task(lambda: nn.Linear(4, 3), loss)):
        assert not run(ct.FedAvg(FEW), fed, made).receipt.valid
        assert run(ct.FedAvg(FEW), fed, public(made)).receipt.valid
    assert run(ct.FedAvg(FEW), fed, ct.Task(lambda: nn.Linear(4, 3))).receipt.valid


def shifted() -> nn.Module:
    """A network whose buffer holds numbers of unknown origin."""
    layer = nn.Linear(4, 3)
    layer.register_buffer("shift", torch.tensor([0.1, 0.2, 0.3, 0.4]))
    return layer


def test_numbers_in_a_buffer_are_weights_too(fed: ct.Federation) -> None:
    receipt = run(ct.FedAvg(FEW), fed, ct.Task(shifted)).receipt
    assert not receipt.valid
    assert "the network's 'shift'" in receipt.reasons[0]
    assert run(ct.FedAvg(FEW), fed, public(ct.Task(shifted))).receipt.valid


# ---- mechanisms and labels -------------------------------------------------------------------------------------------


def test_a_mechanism_does_not_claim_a_sample_that_nobody_drew() -> None:
    rows, ledger = np.ones((50, 1)), Ledger(ct.Privacy(3.0, 1e-6, clip=1.0))
    made = JointSum("s", 1, 1.0, 20.0, sampling=0.001)
    grouped = GroupSums("g", 2, 1, 1.0, 20.0, sampling=0.5)
    for released in (
        made(rows, ExactNoise(), ledger.book),
        grouped(rows, np.zeros(50, int), ExactNoise(), ledger.book),
    ):
        assert not released.clean
        assert not write_receipt(ledger, [released], n_users=50).valid


def test_a_delta_of_one_in_n_is_labelled(make_fed: Any, task: ct.Task) -> None:
    fed = make_fed().declare_public("classes", "kind")
    for delta, weak in ((1 / 12, True), (1e-3, False)):
        receipt = run(ct.FedAvg(FEW), fed, task, ct.Privacy(3.0, delta, clip=0.5)).receipt
        assert ("not smaller than 1/12" in receipt.strength) == weak
        assert ("not smaller than 1/12" in receipt.to_text()) == weak


@pytest.mark.filterwarnings("default::coterie.errors.CoterieWarning")
def test_such_a_delta_is_warned_of_before_the_run(fed: ct.Federation, task: ct.Task) -> None:
    with pytest.warns(ct.errors.CoterieWarning, match="not smaller than 1/12"):
        run(ct.FedAvg(FEW), fed, task, ct.Privacy(3.0, 0.1, clip=0.5))
