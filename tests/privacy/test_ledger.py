"""The ledger refuses before it is too late, forgets nothing, and is safe under death and company."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.errors import ConfigError, CoterieError
from coterie.privacy import (
    BudgetSpent,
    Event,
    ExactNoise,
    JointSum,
    Ledger,
    LedgerError,
    Line,
    OneBit,
    Privacy,
    SimulationNoise,
    make_plan,
    noise_multiplier,
)
from coterie.privacy.accounting import compose

LINES = [Line("quantile", 0.02, 8), Line("mean", 0.1), Line("rounds", 0.88, 10)]


def event(z: float, name: str = "x", **changes: Any) -> Event:
    return Event(name, 1.0, "one", z, z, 1, **changes)


class Recorder:
    """Exact noise that remembers whether it was asked."""

    name, source = "exact", "test"

    def __init__(self) -> None:
        self.asked = 0

    def gaussian(self, total: Any, sigma: float) -> Any:
        self.asked += 1
        return total

    def bits(self, size: int) -> Any:
        return np.zeros(size, np.uint64)


def test_a_plan_spends_the_budget_and_no_more() -> None:
    plan = make_plan(3, 1e-6, LINES)
    assert 3 * (1 - 1e-4) < plan.costs().epsilon(1e-6) <= 3
    quantile, mean, rounds = plan.lines
    assert quantile.count / quantile.noise_multiplier**2 / (1 / mean.noise_multiplier**2) == pytest.approx(0.2)
    assert rounds.share == pytest.approx(0.88)
    assert type(plan).from_json(plan.to_json()) == plan
    mixed = make_plan(3, 1e-4, [Line("mean", 0.1), Line("rounds", 0.9, 100, 0.2)])
    assert 3 * (1 - 1e-3) < mixed.costs().epsilon(1e-4) <= 3


def test_it_refuses_before_the_release_and_keeps_the_rest() -> None:
    plan = make_plan(1, 1e-5, [Line("rounds", 1, 3)])
    ledger, noise = Ledger(Privacy(1, 1e-5, 1.0), plan), Recorder()
    made = JointSum("rounds", 2, 1.0, plan.noise_multiplier("rounds"))
    for _ in range(3):
        made(np.ones((4, 2)), noise, ledger.book)
    with pytest.raises(BudgetSpent, match="the release 'rounds' was refused: with it, this run") as error:
        made(np.ones((4, 2)), noise, ledger.book)
    assert isinstance(error.value, CoterieError)
    assert noise.asked == 3
    assert sum(e.count for e in ledger.events()) == 3
    assert 1 - 1e-3 < ledger.costs().epsilon(1e-5) <= 1


def test_without_a_plan_every_release_is_added_up() -> None:
    ledger = Ledger(Privacy(2, 1e-5, 1.0))
    z = noise_multiplier(2, 1e-5, 5) * (1 + 1e-6)
    for i in range(5):
        ledger.book(event(z, f"release {i}"))
    with pytest.raises(BudgetSpent):
        ledger.book(event(100.0))


def test_less_noise_or_another_sampling_is_not_the_planned_release() -> None:
    plan = make_plan(1, 1e-5, [Line("rounds", 1, 3)])
    z = plan.noise_multiplier("rounds")
    ledger = Ledger(Privacy(1, 1e-5, 1.0), plan)
    with pytest.raises(BudgetSpent):
        ledger.book(event(z * 0.99, "rounds"))
    with pytest.raises(BudgetSpent):
        ledger.book(event(z, "something else"))
    with pytest.raises(BudgetSpent):
        ledger.book(replace(event(z, "rounds"), step=z, dimension=9))  # a lattice as coarse as the noise
    ledger.book(event(z * 2, "rounds", sampling=0.5))
    one_bit = OneBit("bit", 0.5).event()
    with pytest.raises(BudgetSpent):
        ledger.book(one_bit)


def test_runs_on_the_same_users_add_up(tmp_path: Path) -> None:
    budget = Privacy(1, 1e-5, 1.0, ledger=tmp_path / "l.sqlite", total_epsilon=2.0)
    plan = make_plan(1, 1e-5, [Line("rounds", 1, 2)])
    z = plan.noise_multiplier("rounds")
    for _ in range(3):
        ledger = Ledger(budget, plan)
        for _ in range(2):
            ledger.book(event(z, "rounds"))
        ledger.close()
    with pytest.raises(BudgetSpent, match="all runs on 'users'"):
        Ledger(budget, plan)  # μ adds up in squares: three runs of ε = 1 cost 1.9 together, and four would cost 2.2
    Ledger(replace(budget, users="others"), plan)  # other people, another budget
    with pytest.raises(ConfigError, match="have a ledger for 'zero-out'"):
        Ledger(replace(budget, adjacency="replace"))


def test_an_open_plan_is_reserved_and_a_closed_one_gives_back(tmp_path: Path) -> None:
    budget = Privacy(1, 1e-5, 1.0, ledger=tmp_path / "l.sqlite")
    plan = make_plan(1, 1e-5, [Line("rounds", 1, 4)])
    first = Ledger(budget, plan)
    first.book(event(plan.noise_multiplier("rounds"), "rounds"))
    with pytest.raises(BudgetSpent):
        Ledger(budget, plan)
    first.close()
    half = make_plan(0.6, 1e-5, [Line("rounds", 1, 4)])
    second = Ledger(budget, half)
    assert sum(e.count for e in second.earlier()) == 1


def test_a_closed_run_no_longer_books_on_its_plan(tmp_path: Path) -> None:
    """Its reservation was given back, and another run may have taken it."""
    budget = Privacy(1, 1e-5, 1.0, ledger=tmp_path / "l.sqlite")
    plan = make_plan(1, 1e-5, [Line("rounds", 1, 2)])
    release = event(plan.noise_multiplier("rounds"), "rounds")
    first = Ledger(budget, plan)
    first.close()
    second = Ledger(budget, plan)
    with pytest.raises(BudgetSpent, match="all runs"):
        first.book(release)
    second.close()
    first.book(release)  # nobody took it
    first.book(release)
    with pytest.raises(BudgetSpent):
        first.book(release)


def test_a_plan_is_made_for_the_budgets_delta_and_adjacency() -> None:
    lines = [Line("rounds", 1, 4)]
    Ledger(Privacy(1, 1e-5, 1.0), make_plan(1, 1e-6, lines))  # a smaller delta promises more
    for plan in (make_plan(1, 1.1e-5, lines), make_plan(1, 1e-5, lines, "replace")):
        with pytest.raises(ConfigError, match="the adjacency of the budget and no larger delta"):
            Ledger(Privacy(1, 1e-5, 1.0), plan)


def test_a_plan_of_which_nothing_was_released_is_reserved_too(tmp_path: Path) -> None:
    budget = Privacy(1, 1e-5, 1.0, ledger=tmp_path / "l.sqlite")
    first = Ledger(budget, make_plan(1, 1e-5, [Line("rounds", 1, 4)]))
    small = make_plan(0.1, 1e-5, [Line("rounds", 1, 4)])
    with pytest.raises(BudgetSpent, match="all runs"):
        Ledger(budget, small)
    first.close()
    Ledger(budget, small)


def test_several_releases_in_one_booking_each_pay_for_their_lattice() -> None:
    plan = make_plan(1, 1e-5, [Line("rounds", 1, 10)])
    z = plan.noise_multiplier("rounds")
    steps = (event(z, "rounds", step=z * 2.0**-k) for k in range(60))
    coarse = next(e for e in steps if e.slack <= plan.reserve)
    assert coarse.slack > plan.reserve / 5  # the reserve is enough for one of them, and not for five
    assert compose([replace(coarse, count=5)]).slack == pytest.approx(5 * coarse.slack, rel=1e-12, abs=0)
    Ledger(Privacy(1, 1e-5, 1.0), plan).book(coarse)
    with pytest.raises(BudgetSpent):
        Ledger(Privacy(1, 1e-5, 1.0), plan).book(replace(coarse, count=5))


def _writer(path: str, tries: int, queue: Any) -> None:
    ledger = Ledger(Privacy(1, 1e-5, 1.0, ledger=path))
    z, booked = noise_multiplier(1, 1e-5, 60) * (1 + 1e-6), 0
    for _ in range(tries):
        try:
            ledger.book(event(z, "shared"))
            booked += 1
        except BudgetSpent:
            break
    queue.put(booked)


def test_eight_writers_at_once_spend_the_budget_exactly_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    path = str(tmp_path / "l.sqlite")
    workers = [context.Process(target=_writer, args=(path, 20, queue)) for _ in range(8)]
    for worker in workers:
        worker.start()
    booked = [queue.get(timeout=120) for _ in workers]
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 8
    assert sum(booked) == 60
    assert sum(e.count for e in Ledger(Privacy(1, 1e-5, 1.0, ledger=path)).earlier()) == 60


DIES = """
import os, signal, sys
import numpy as np
from coterie.privacy import ExactNoise, JointSum, Ledger, Line, Privacy, make_plan

class Dies(ExactNoise):
    def gaussian(self, total, sigma):
        noisy = super().gaussian(total, sigma)
        if os.path.exists(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)  # noise is drawn, nothing is saved
        open(sys.argv[2], "w").close()
        return noisy

plan = make_plan(1, 1e-5, [Line("rounds", 1, 3)])
ledger = Ledger(Privacy(1, 1e-5, 1.0, ledger=sys.argv[1]), plan, run="r")
for _ in range(3):
    JointSum("rounds", 1, 1.0, plan.noise_multiplier("rounds"))(np.ones((2, 1)), Dies(), ledger.book)
"""


def test_a_release_that_died_between_noise_and_save_stays_booked(tmp_path: Path) -> None:
    path = tmp_path / "l.sqlite"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", DIES, str(path), str(tmp_path / "once")], env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    again = Ledger(Privacy(1, 1e-5, 1.0, ledger=path), run="r")
    assert again.plan is not None
    assert sum(e.count for e in again.events()) == 2  # the first was shown, the second may have been
    z = again.plan.noise_multiplier("rounds")
    again.book(event(z, "rounds"))
    with pytest.raises(BudgetSpent):
        again.book(event(z, "rounds"))


def test_state_survives_a_checkpoint(tmp_path: Path) -> None:
    plan = make_plan(1, 1e-5, [Line("rounds", 1, 3)])
    z = plan.noise_multiplier("rounds")
    for path in (tmp_path / "l.sqlite", None):
        budget = Privacy(1, 1e-5, 1.0, ledger=path)
        ledger = Ledger(budget, plan)
        ledger.book(event(z, "rounds"))
        state = json.loads(json.dumps(ledger.state()))
        ledger.book(event(z, "rounds"))  # after the checkpoint
        again = Ledger.restore(budget, state)
        assert sum(e.count for e in again.events()) == (2 if path else 1)
        assert bool(again.taint) == (path is None)  # without a file the second release is not known any more
    with pytest.raises(LedgerError, match="does not hold the releases"):
        Ledger.restore(Privacy(1, 1e-5, 1.0, ledger=tmp_path / "other.sqlite"), state)


def test_the_wrong_noise_or_adjacency_is_refused(tmp_path: Path) -> None:
    ledger = Ledger(Privacy(1, 1e-5, 1.0))
    with pytest.raises(ConfigError, match="simulation"):
        JointSum("s", 1, 1.0, 50.0)(np.zeros((2, 1)), SimulationNoise(0), ledger.book)
    replaced = Ledger(Privacy(1, 1e-5, 1.0, adjacency="replace"))
    with pytest.raises(ConfigError, match="use replace"):
        JointSum("s", 1, 1.0, 50.0)(np.zeros((2, 1)), ExactNoise(), replaced.book)
    simulated = tmp_path / "s.sqlite"
    Ledger(Privacy(1, 1e-5, 1.0, noise="simulation", ledger=simulated))
    assert not simulated.exists()  # a simulation spends nobody's budget
    (tmp_path / "broken.sqlite").write_text("this is not a database, it only looks like a file of one")
    with pytest.raises(LedgerError, match="nothing was released"):
        Ledger(Privacy(1, 1e-5, 1.0, ledger=tmp_path / "broken.sqlite"))


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "[]", "7", "{}", '{"lines": 3}', '{"lines": [[]]}'])
def test_damaged_plans_and_events_end_in_one_sentence(text: str) -> None:
    from coterie.privacy.events import Event
    from coterie.privacy.plan import Plan

    for kind in (Plan, Event):
        with pytest.raises(ConfigError):
            kind.from_json(text)
