"""The rule on losses written by hand: what is proven, what is worth it, what is simple, and how sure."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from coterie.evidence.gains import GAINS, LOSES, UNCLEAR, marks
from coterie.evidence.mean_gains import gain
from coterie.evidence.rule import decide_scores, judge
from coterie.evidence.scores import METHODS, Scores


def scores(means: dict[str, float], *, clients: int = 20, rows: int = 20, noise: float = 0.2, between: float = 0.0,
           repeats: int = 1, seed: int = 0) -> Scores:  # fmt: skip
    """Losses of every row about a method's mean; the noise is each method's own, and so is what clients differ by."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(clients), rows)
    usual = {"constant": 1.0, "alone": 0.6, "together": 0.9, "shrunk": 0.9, "groups": 0.9} | means
    level = np.array([usual[m] for m in METHODS])[:, None]
    common = rng.normal(size=len(owner)) * 0.3  # how hard a row is, for all methods alike
    own = (
        noise * rng.normal(size=(len(METHODS), len(owner)))
        + between * rng.normal(size=(len(METHODS), clients))[:, owner]
    )
    values = np.repeat((level + common + own)[None], repeats, axis=0)
    fold = np.tile(np.arange(len(owner)) % 10, (repeats, 1))
    return Scores("mse", values, fold, 10, owner, np.arange(clients), clients)


def test_a_gain_must_exceed_its_error_and_not_only_zero() -> None:
    """Together is ahead by about one standard error of the clients' differences: no proof."""
    found = judge(scores({"together": 0.5}, between=0.2))
    assert 0.02 < found.over_alone["together"].mean < found.over_alone["together"].se_clients * found.needed
    assert found.proven == ()
    assert (found.recommendation, found.sure) == ("alone", "leaning")
    clear = judge(scores({"together": 0.3}, between=0.2))
    assert (clear.recommendation, clear.sure) == ("together", "clear")


def test_what_does_not_beat_the_average_is_not_learned() -> None:
    """Alone is terrible, so that everything gains over it; only what beats the overall average may be recommended."""
    found = judge(scores({"alone": 2.0, "together": 1.2, "shrunk": 1.2, "groups": 1.2}))
    assert found.over_alone["together"].beyond(found.needed)
    assert (found.recommendation, found.sure, found.proven) == ("alone", "nothing", ())


@pytest.mark.parametrize(("errors", "learned"), [(2.0, False), (2.4, True)])
def test_four_methods_may_beat_the_average_by_chance(errors: float, learned: bool) -> None:
    """One method alone is enough to say that something can be learned, so each must be ahead by more than 2.24 errors."""
    made = scores({"together": 1.0})
    place, constant = METHODS.index("together"), METHODS.index("constant")
    before = gain(made, place, constant)
    rows = made.rows.copy()
    rows[:, place] += before.mean - errors * before.se_rows
    moved = Scores(made.metric, rows, made.fold, 10, made.owner, made.scored, made.n_clients)
    assert gain(moved, place, constant).mean == pytest.approx(errors * before.se_rows)
    assert ("together" in judge(moved).learnable) == learned


def test_less_than_one_per_cent_of_the_room_is_not_worth_it() -> None:
    """Room 0.4; a sure gain of 0.002 is half of one per cent."""
    found = judge(scores({"together": 0.598}, noise=0.003, rows=200))
    assert found.over_alone["together"].beyond(found.needed)
    assert found.room == pytest.approx(0.402, abs=0.01)
    assert found.recommendation == "alone"
    assert judge(scores({"together": 0.59}, noise=0.003, rows=200)).recommendation == "together"


def test_the_simplest_that_is_not_measurably_worse_is_taken() -> None:
    """Losses that differ by chance alone: the least loss is mostly another's, and together is taken nine times of ten."""
    alike = [judge(scores({"together": 0.3, "shrunk": 0.3, "groups": 0.3}, seed=s)) for s in range(20)]
    assert sum(f.rival != "together" for f in alike) >= 10
    assert sum(f.recommendation == "together" for f in alike) >= 16
    better = judge(scores({"together": 0.3, "shrunk": 0.2}))
    assert better.recommendation == "shrunk"


def test_choosing_among_three_is_paid_for() -> None:
    few = judge(scores({}, clients=6))
    rows = 6 * 20 - 6
    assert few.needed == pytest.approx(stats.t.ppf(1 - 0.05 / 3, rows))
    many = judge(scores({}, clients=40, between=0.2))
    assert many.needed > stats.t.ppf(0.95, 39) + 0.2  # independent methods: the largest of three is ahead by chance


def test_few_clients_are_judged_over_rows_widened() -> None:
    """Five clients happen to agree; the spread between them says little, the rows say how sure it is."""
    found = gain(scores({}, clients=5), METHODS.index("together"), METHODS.index("alone"))
    assert found.gate_se() == pytest.approx(1.5 * found.se_rows)
    many = gain(scores({}, clients=10), METHODS.index("together"), METHODS.index("alone"))
    assert many.gate_se() == pytest.approx(many.se_clients)


def test_repeats_that_disagree_are_borderline() -> None:
    """Together is ahead in one repeat by far and behind in the other two: so it is on average, but not steadily."""
    whole = scores({"together": 0.6}, repeats=3)
    rows = whole.rows.copy()
    place = METHODS.index("together")
    rows[0, place] -= 0.5
    rows[1:, place] += 0.05
    moved = Scores(whole.metric, rows, whole.fold, 10, whole.owner, whole.scored, whole.n_clients)
    assert judge(moved).recommendation == "together"
    assert decide_scores(moved).sure == "borderline"
    steady = scores({"together": 0.3}, repeats=3)
    assert decide_scores(steady).sure == "clear"


def test_single_clients_are_marked_after_a_correction_for_many() -> None:
    """Sixty clients without a gain, one that gains and one that loses: those two are marked."""
    made = scores({"together": 0.6}, clients=62)
    rows = made.rows.copy()
    rows[:, METHODS.index("together"), made.owner == 0] -= 0.5
    rows[:, METHODS.index("together"), made.owner == 1] += 0.5
    moved = Scores(made.metric, rows, made.fold, 10, made.owner, made.scored, made.n_clients)
    found = gain(moved, METHODS.index("together"), METHODS.index("alone"))
    told = marks(found.single(moved))
    assert (told[0], told[1]) == (GAINS, LOSES)
    assert set(told[2:]) == {UNCLEAR}
    error = found.single(moved).error
    assert (np.abs(found.clients[2:]) > 1.5 * error[2:]).any()  # less caution would have marked one of them


def test_large_clients_cannot_prove_a_gain_that_is_next_to_nothing() -> None:
    """The numbers of a world without anything in common: clients of 1,000 rows gain five millionths for sure, and the mean
    gain is that of three clients with five rows."""
    usual = gain(scores({}), METHODS.index("together"), METHODS.index("alone"))
    found = replace(usual, mean=0.027, se_clients=0.023, weighted=5.7e-6, weighted_se=1.6e-6)
    assert found.beyond(2.2)
    assert not found.beyond(2.2, least=0.007)
    assert replace(found, weighted=0.01).beyond(2.2, least=0.007)
    assert not replace(found, mean=0.006, se_clients=0.001).beyond(2.2, least=0.007)


def test_stretches_of_time_are_not_independent_rows() -> None:
    """Clients whose gains differ: sure over rows, not over clients."""
    made = scores({"alone": 1.05, "together": 0.96, "shrunk": 1.05, "groups": 1.05}, between=0.1, rows=200)
    assert "together" in judge(made).learnable
    found = gain(made, METHODS.index("together"), 0)
    assert found.mean < 2.2 * found.se_clients
    assert "together" not in judge(replace(made, ordered=True)).learnable
