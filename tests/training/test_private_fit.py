"""fit(…, privacy=…): what is released, what it costs, when it stops, and what voids the receipt."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import coterie as ct
from coterie.aggregation import CentredClipping, Median
from coterie.algorithms.ifca import EarlyStop
from coterie.base.tree import flat_vector, row
from coterie.exchange.channels.attacks import InnerProduct, LargeGradient, SignFlip
from coterie.exchange.messages import Ints
from coterie.privacy import BudgetSpent, ExactNoise, Ledger, SimulationNoise, public

pytestmark = pytest.mark.filterwarnings("ignore::coterie.errors.CoterieWarning")
SGD = ct.LocalSGD(steps=2, lr=0.1, batch_size=None)
EXACT = ct.Privacy(3.0, 1e-6, clip=1.0)
SIMULATED = replace(EXACT, noise="simulation")


def run(
    algorithm: Any, fed: ct.Federation, task: ct.Task, privacy: ct.Privacy = SIMULATED, **options: Any
) -> ct.Result:
    return ct.fit(algorithm, fed, task, **({"rounds": 2, "alone": False} | options), privacy=privacy)


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No noise at all, in either mode: what is left is clipping, adding up and dividing."""
    for kind in (SimulationNoise, ExactNoise):
        monkeypatch.setattr(kind, "gaussian", lambda self, total, sigma: total)


# ---- what is released ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", ["simulation", "exact"])
def test_without_noise_it_is_the_mean_of_clipped_updates(
    quiet: None, fed: ct.Federation, task: ct.Task, noise: str
) -> None:
    """Every client counts once, whatever its number of rows; the divisor is the public number of clients."""
    plain = ct.fit(ct.FedAvg(SGD, aggregate=CentredClipping(0.05, 1)), fed, task, rounds=1, alone=False)
    for engine in ("local", "loop"):
        private = run(ct.FedAvg(SGD), fed, task, replace(EXACT, clip=0.05, noise=noise), rounds=1, engine=engine)
        for name, t in private.state.model.items():
            torch.testing.assert_close(t, plain.state.model[name], rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("noise", ["simulation", "exact"])
def test_without_noise_groups_are_divided_by_their_counts(
    quiet: None, make_fed: Any, task: ct.Task, noise: str
) -> None:
    fed = make_fed(sizes=(20,) * 300)  # equal sizes, and enough for counts to be above four deviations
    loose = replace(EXACT, clip=50.0, noise=noise, epsilon=50.0)
    for algorithm in (
        ct.Oracle(SGD),
        ct.IFCA(clusters=2, local=SGD, start="random"),
        ct.HypCluster(clusters=2, local=SGD),
    ):
        plain = ct.fit(algorithm, fed, task, rounds=2, alone=False)
        private = run(algorithm, fed, task, loose)
        for name, t in private.state.models.items():
            torch.testing.assert_close(t, plain.state.models[name], rtol=1e-3, atol=5e-4)


def test_the_noise_has_the_planned_size(make_fed: Any, task: ct.Task) -> None:
    """Nobody moves: what is left is noise of σ = z·Δ on the sum, divided by the number of clients."""
    fed = make_fed(sizes=(6,) * 40)
    still = ct.LocalSGD(steps=1, lr=1e-12, batch_size=None)
    for noise in ("simulation", "exact"):
        start = ct.fit(ct.FedAvg(still), fed, task, rounds=0, alone=False)
        result = run(ct.FedAvg(still), fed, task, replace(EXACT, noise=noise, clip=2.0), rounds=10, evaluate_every=0)
        moved = (flat_vector(result.state.model) - flat_vector(start.state.model)).double()
        sigma = ct.privacy.noise_multiplier(3.0, 1e-6, 10) * 2.0 / 40 * np.sqrt(10)
        assert abs(float(moved.pow(2).mean().sqrt()) / sigma - 1) < 4 / np.sqrt(2 * len(moved))
        assert result.receipt.releases[0]["count"] == 10


def test_attacks_act_before_clipping_and_dropouts_compose(quiet: None, fed: ct.Federation, task: ct.Task) -> None:
    liar = LargeGradient([fed.clients[0]], factor=-1e6)
    honest, attacked = (
        run(ct.FedAvg(SGD), fed, task, replace(SIMULATED, clip=0.1), rounds=1, channels=c) for c in ([], [liar])
    )
    moved = flat_vector(attacked.state.model) - flat_vector(honest.state.model)
    assert 0 < float(moved.norm()) <= 2 * 0.1 / len(fed) * 1.001
    nobody = run(ct.FedAvg(SGD), fed, task, channels=[ct.exchange.Dropout(1.0)], rounds=1)
    assert torch.equal(
        flat_vector(nobody.state.model), flat_vector(ct.fit(ct.FedAvg(SGD), fed, task, rounds=0).state.model)
    )
    assert nobody.receipt.releases[0]["count"] == 1  # all are lost, and yet something is released
    run(ct.IFCA(clusters=2, local=SGD), fed, task, channels=[ct.exchange.Dropout(0.5), liar])


@pytest.mark.parametrize(
    "algorithm", [ct.FedAvg(SGD), ct.IFCA(clusters=2, local=SGD, option="gradient"), ct.Oracle(SGD)]
)
def test_an_empty_poisson_cohort_releases_noise_too(
    algorithm: Any, fed: ct.Federation, task: ct.Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("coterie.training.private_run.os.urandom", lambda size: b"\xff" * size)  # draws nobody
        result = run(algorithm, fed, task, EXACT, cohort=0.5, rounds=3)
        assert (result.history["clients"] == 0).all()
    assert result.receipt.releases[0]["count"] == 3
    full = run(algorithm, fed, task, cohort=0.5, rounds=3)
    assert result.receipt.releases[0]["dimension"] == full.receipt.releases[0]["dimension"]
    if isinstance(algorithm, ct.FedAvg):
        start = ct.fit(algorithm, fed, task, rounds=0, alone=False)
        assert not torch.equal(flat_vector(result.state.model), flat_vector(start.state.model))


def test_an_exact_poisson_cohort_is_drawn_in_secret(fed: ct.Federation, task: ct.Task) -> None:
    who: list[int] = []
    for privacy in (SIMULATED, SIMULATED, EXACT, EXACT):
        result = run(ct.FedAvg(SGD), fed, task, privacy, cohort=0.5, rounds=12)
        who.append(tuple(result.history["clients"]))
    assert who[0] == who[1]
    assert who[2] != who[3]


# ---- what it costs ---------------------------------------------------------------------------------------------------


def test_an_exact_run_earns_a_receipt_that_is_stored(fed: ct.Federation, task: ct.Task, tmp_path: Path) -> None:
    result = run(ct.IFCA(clusters=2, local=SGD, stop=EarlyStop(2)), fed, task, EXACT, out=tmp_path)
    receipt = result.receipt
    assert receipt.valid
    assert receipt.reasons == ()
    assert 2.99 < receipt.epsilon <= 3.0
    assert receipt.delta == 1e-6
    assert any("start='random'" in what for what in receipt.choices)
    assert any("stop=None" in what for what in receipt.choices)
    assert ct.Result.load(tmp_path).receipt == receipt
    assert result.about["simulation_only"]
    assert (tmp_path / "ledger.sqlite").exists()
    simulation = run(ct.IFCA(clusters=2, local=SGD), fed, task).receipt
    assert not simulation.valid
    assert "NOT A DP RELEASE" in simulation.reasons[0]
    assert ct.fit(ct.FedAvg(SGD), fed, task, rounds=1, alone=False).receipt is None


def test_sampling_is_accounted_as_what_it_is(fed: ct.Federation, task: ct.Task) -> None:
    poisson = run(ct.FedAvg(SGD), fed, task, cohort=0.25)
    fixed = run(ct.FedAvg(SGD), fed, task, cohort=3)
    everyone = run(ct.FedAvg(SGD), fed, task)
    line = [r.receipt.releases[0] for r in (poisson, fixed, everyone)]
    assert [x["sampling"] for x in line] == [0.25, 1.0, 1.0]
    assert line[0]["noise_multiplier"] < line[1]["noise_multiplier"] == line[2]["noise_multiplier"]
    assert any("full participation" in text for text in fixed.receipt.public)

    class Mine:
        def sample(self, federation: ct.Federation, seed: int, round: int) -> Ints:
            return np.arange(3)

    with pytest.raises(ct.errors.ConfigError, match="how clients are sampled; got Mine"):
        run(ct.FedAvg(SGD), fed, task, cohort=Mine())


def test_replace_needs_twice_the_noise(fed: ct.Federation, task: ct.Task) -> None:
    zero, swap = (
        run(ct.FedAvg(SGD), fed, task, replace(SIMULATED, adjacency=a)).receipt.releases[0]
        for a in ("zero-out", "replace")
    )
    assert swap["sigma"] == pytest.approx(2 * zero["sigma"])


def test_training_alone_costs_nothing(fed: ct.Federation, task: ct.Task) -> None:
    receipt = run(ct.Local(SGD), fed, task, EXACT).receipt
    assert receipt.valid
    assert receipt.epsilon == 0.0
    assert receipt.releases == ()


def test_a_warning_before_noise_drowns_the_signal(fed: ct.Federation, task: ct.Task) -> None:
    with pytest.warns(ct.errors.CoterieWarning, match="the noise will be larger than the signal: with 12 clients"):
        run(ct.FedAvg(SGD), fed, task)


# ---- what is refused, and what voids the receipt ---------------------------------------------------------------------


def test_what_needs_clear_replies_is_refused(fed: ct.Federation, task: ct.Task) -> None:
    with pytest.raises(
        ct.errors.ConfigError, match=r"robust aggregate needs clear replies.*got Median.*clips every client"
    ):
        run(ct.FineTuned(base=ct.FedAvg(SGD, aggregate=Median())), fed, task)
    with pytest.raises(ct.errors.ConfigError, match=r"the ask 'train' shows the server every client's reply"):
        run(ct.CFL(SGD), fed, task)


class Own(ct.FedAvg):
    """Sends every client a model of its own."""

    def round(self, state: Any, cohort: ct.exchange.Cohort) -> Any:
        each = {"model": {k: t.expand(len(cohort.clients), *t.shape) for k, t in state.model.items()}}
        reply = yield ct.exchange.Ask(
            self.train,
            cohort.clients,
            each=each,
            reduce=ct.exchange.MeanBy(),
            updates={"model": ct.exchange.From("model")},
        )
        return replace(state, model=row(reply.values["model"], 0))


class Undeclared(ct.FedAvg):
    def round(self, state: Any, cohort: ct.exchange.Cohort) -> Any:
        yield ct.exchange.Ask(self.train, cohort.clients, {"model": state.model}, reduce=ct.exchange.MeanBy())
        return state


class Talkative(ct.FedAvg):
    def round(self, state: Any, cohort: ct.exchange.Cohort) -> Any:
        yield ct.exchange.Ask(
            self.train, cohort.clients, {"model": state.model}, reduce=ct.exchange.MeanBy(), auxiliary=("model",)
        )
        return state


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Own, "each client gets for itself"),
        (Undeclared, "does not say whether 'model' is one"),
        (Talkative, "also sends 'model', which is not an update"),
    ],
)
def test_what_is_not_declared_as_an_update_from_public_values_is_refused(
    kind: Any, message: str, fed: ct.Federation, task: ct.Task
) -> None:
    for engine in ("local", "loop"):
        with pytest.raises(ct.errors.ConfigError, match=message):
            run(kind(SGD), fed, task, engine=engine)


@pytest.mark.parametrize("noise", ["simulation", "exact"])
@pytest.mark.parametrize("beyond", ["shorten", "drop"])
def test_one_step_of_centred_clipping_is_a_clip(
    quiet: None, fed: ct.Federation, task: ct.Task, noise: str, beyond: Any
) -> None:
    """The same model as the rule on clear replies, from sums alone; the receipt has the rule's radius."""
    rule = CentredClipping(0.06, 1, beyond=beyond)  # some clients move further than that
    plain = ct.fit(ct.FedAvg(SGD, aggregate=rule), fed, task, rounds=1, alone=False)
    result = run(ct.FedAvg(SGD, aggregate=rule), fed, task, replace(EXACT, noise=noise), rounds=1)
    for name, t in result.state.model.items():
        torch.testing.assert_close(t, plain.state.model[name], rtol=1e-4, atol=2e-5)
    assert result.receipt.releases[0]["sensitivity"] == pytest.approx(0.06, rel=1e-4)
    assert any("CentredClipping" in what for what in result.receipt.choices)


def test_rules_that_look_again_are_refused_with_the_reason(fed: ct.Federation, task: ct.Task) -> None:
    for rule, why in (
        (CentredClipping(0.1), "looks at every reply again from each new centre"),
        (CentredClipping(0.1, 1, start="median"), "iterations=1"),
        (ct.robust.TrimmedMean(1), "sorts the clients' numbers"),
        (ct.robust.Krum(1), "picks one client's reply"),
    ):
        with pytest.raises(ct.errors.ConfigError, match=why):
            run(ct.FedAvg(SGD, aggregate=rule), fed, task)
    with pytest.raises(ct.errors.ConfigError, match="cannot be clipped at 1 as well"):
        run(ct.FedAvg(SGD, aggregate=CentredClipping(2.0, 1, beyond="drop")), fed, task)


def test_liars_and_faults_in_a_private_run_and_what_they_do_to_the_receipt(fed: ct.Federation, task: ct.Task) -> None:
    """Liars that look at others' messages are a simulation of the worst case: the receipt is void. Others are not."""
    alone = [ct.exchange.Dropout(0.3), LargeGradient([fed.clients[0]]), SignFlip([fed.clients[1]], 5.0)]
    honest = run(ct.Ditto(local=SGD), fed, task, EXACT, channels=alone)
    assert honest.receipt.valid, honest.receipt.reasons
    assert honest.receipt.releases[0]["count"] == 2  # a release each round, whoever answered
    seen = run(ct.FedAvg(SGD), fed, task, EXACT, channels=[InnerProduct([fed.clients[0]])]).receipt
    assert not seen.valid
    assert "InnerProduct, what one client sends may depend on other clients' data" in seen.reasons[0]


def test_sums_of_those_who_answer_are_divided_by_the_public_number(
    quiet: None, fed: ct.Federation, task: ct.Task
) -> None:
    """Not by the number of those who answered, which is nobody's business."""
    faulty: dict[str, Any] = {"rounds": 1, "alone": False, "channels": [ct.exchange.Dropout(0.5)]}
    plain = ct.fit(ct.FedAvg(SGD, aggregate=CentredClipping(0.05, 1)), fed, task, **faulty)
    private = run(ct.FedAvg(SGD), fed, task, replace(SIMULATED, clip=0.05), **faulty)
    start = flat_vector(ct.fit(ct.FedAvg(SGD), fed, task, rounds=0, alone=False).state.model)
    one, two = (flat_vector(result.state.model) - start for result in (plain, private))
    answered = float(two.norm() / one.norm()) * len(fed)
    assert answered == pytest.approx(round(answered), abs=0.01)
    assert 0 < answered < len(fed) - 0.5
    torch.testing.assert_close(two * len(fed) / answered, one, rtol=1e-3, atol=1e-5)


def test_a_budget_is_a_privacy(fed: ct.Federation, task: ct.Task) -> None:
    with pytest.raises(
        ct.errors.ConfigError, match=r"privacy must be ct.Privacy\(epsilon, delta, clip\), or None; got 'exact'"
    ):
        run(ct.FedAvg(SGD), fed, task, "exact")  # type: ignore[arg-type]


def test_the_sizes_of_clients_are_not_told_to_the_server(fed: ct.Federation, task: ct.Task) -> None:
    class Nosy(ct.FedAvg):
        def init(self, task: Any, population: Any, seed: int, start: Any) -> Any:
            assert set(population.sizes) == {1}
            return super().init(task, population, seed, start)

    run(Nosy(SGD), fed, task)


def test_what_was_made_from_clear_data_voids_the_receipt(fed: ct.Federation, task: ct.Task) -> None:
    start = task.init(5, torch.float32)
    assert run(ct.FedAvg(SGD), fed, task, EXACT, start=public(start)).receipt.valid
    raw = run(ct.FedAvg(SGD), fed, task, EXACT, start=start).receipt
    assert not raw.valid
    assert "start is of unknown origin" in raw.reasons[0]
    scaled = run(ct.FedAvg(SGD), replace(fed, preprocessing=pd.DataFrame({"mean": [0.0]})), task, EXACT).receipt
    assert not scaled.valid
    assert "statistics of all clients" in scaled.reasons[0]


@pytest.mark.slow
def test_a_number_of_clusters_chosen_on_data_voids_the_receipt(make_fed: Any, task: ct.Task) -> None:
    chosen = run(ct.HypCluster(local=SGD), make_fed(sizes=(30,) * 12), task, EXACT, rounds=1).receipt
    assert not chosen.valid
    assert "number of clusters" in chosen.reasons[0]


# ---- the ledger ------------------------------------------------------------------------------------------------------


def test_runs_on_the_same_users_add_up(fed: ct.Federation, task: ct.Task, tmp_path: Path) -> None:
    book = replace(EXACT, ledger=tmp_path / "book.sqlite", total_epsilon=3.3)
    first = run(ct.FedAvg(SGD), fed, task, book).receipt
    second = run(ct.FedAvg(SGD), fed, task, replace(book, epsilon=1.0)).receipt
    assert first.cumulative["epsilon"] < second.cumulative["epsilon"] <= 3.3
    assert second.epsilon <= 1.0
    with pytest.raises(BudgetSpent, match="the plan was refused"):
        run(ct.FedAvg(SGD), fed, task, book)
    run(ct.FedAvg(SGD), fed, task, replace(book, users="others"))


def test_a_simulation_resumes_bit_identically(fed: ct.Federation, task: ct.Task, tmp_path: Path) -> None:
    def stop(line: dict[str, Any], state: Any) -> None:
        if line["round"] == 3:
            raise RuntimeError("power cut")

    options: dict[str, Any] = {"rounds": 5, "cohort": 0.5}
    whole = run(ct.IFCA(clusters=2, local=SGD), fed, task, **options)
    with pytest.raises(RuntimeError, match="power cut"):
        run(ct.IFCA(clusters=2, local=SGD), fed, task, out=tmp_path, callbacks=[stop], checkpoint_every=1, **options)
    again = run(ct.IFCA(clusters=2, local=SGD), fed, task, out=tmp_path, resume=True, **options)
    assert torch.equal(flat_vector(whole.state.models), flat_vector(again.state.models))
    assert again.receipt.releases == whole.receipt.releases
    with pytest.raises(ct.errors.ConfigError, match="other settings or data"):
        run(ct.IFCA(clusters=2, local=SGD), fed, task, out=tmp_path, resume=True, rounds=6, cohort=0.5)


KILLED = """
    import os, signal, sys
    sys.path.insert(0, {tests!r})
    import coterie as ct
    from conftest import build
    from torch import nn

    def die(row, state):
        if row["round"] == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    task = ct.Task(lambda: nn.Linear(4, 3))
    ct.fit(ct.FedAvg(ct.LocalSGD(steps=2, lr=0.1, batch_size=None)), build(), task, rounds=5, out={out!r}, alone=False,
           callbacks=[die], privacy=ct.Privacy(3.0, 1e-6, clip=1.0))
"""


def test_after_kill_9_between_noise_and_save_the_lost_release_stays_paid(fed: ct.Federation, tmp_path: Path) -> None:
    code = textwrap.dedent(KILLED.format(tests=str(Path(__file__).parents[1]), out=str(tmp_path)))
    dead = subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=os.environ, check=False)
    assert dead.returncode == -9
    task = ct.Task(lambda: torch.nn.Linear(4, 3))
    privacy = replace(EXACT, ledger=tmp_path / "ledger.sqlite")
    assert sum(e.count for e in Ledger(privacy, None, run="look").earlier()) == 3  # booked, two of them saved
    with pytest.warns(ct.errors.CoterieWarning, match="Round 5 was not made"):
        result = run(ct.FedAvg(SGD), fed, task, EXACT, out=tmp_path, rounds=5, resume=True)
    assert len(result.history) == 4
    assert not result.about["finished"]
    assert "would cost" in result.about["stopped"]
    assert result.receipt.releases[0]["count"] == 5
    assert result.receipt.epsilon <= 3.0
    loaded = ct.Result.load(tmp_path)
    assert loaded.receipt == result.receipt
    assert len(loaded.history) == 4


def test_values_that_the_network_cannot_take_end_in_one_sentence(make_fed: Any) -> None:
    rng = np.random.default_rng(0)
    data = {f"c{i}": (rng.integers(0, 5, (8, 3)), np.arange(8) % 2) for i in range(3)}
    data["c0"][0][:] = 10**6
    fed = ct.Federation.from_arrays(data, dtype="int64")
    task = ct.Task(lambda: nn.Sequential(nn.Embedding(5, 2), nn.Flatten(), nn.Linear(6, 2)))
    with pytest.raises(ct.errors.TaskError, match="cannot take the values of these clients: index out of range"):
        ct.fit(ct.FedAvg(SGD), fed, task, rounds=1, progress=False, privacy=ct.Privacy(3.0, 1e-5, clip=1.0))
