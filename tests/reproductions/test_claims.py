"""What decides a claim and a row: intervals over seeds, whose error rates are measured here."""

import numpy as np
import pytest
from scipy import stats

from reproductions.claims import PAPER_IS_WRONG, Claim, Margin, Share, sure
from reproductions.experiment import Records, Row


def finding(*margins, **how):
    return Claim("", margins, "", **how).finding


def test_a_margin_has_students_interval():
    values = [0.3, 0.5, 0.1, 0.4]
    expected = stats.t.interval(0.95, 3, loc=np.mean(values), scale=stats.sem(values))
    np.testing.assert_allclose(Margin("", values).interval(), expected)
    wider = Margin("", values, own_error=1.0).interval()
    np.testing.assert_allclose(wider, stats.t.interval(0.95, 3, loc=np.mean(values), scale=1.0))


def test_a_share_has_the_exact_interval():
    low, high = Share("", [True] * 20, 0.5).interval()
    assert low == pytest.approx(0.025 ** (1 / 20) - 0.5)
    assert high == pytest.approx(0.5)


def test_a_claim_holds_fails_or_is_undecided():
    clear, below, unclear = Margin("", [1.0, 1.1, 0.9]), Margin("", [-1.0, -1.1, -0.9]), Margin("", [-1.0, 1.0, 0.5])
    assert finding(clear) == "holds"
    assert finding(clear, unclear) == "undecided"
    assert finding(clear, below) == "does not hold"
    assert finding() == "undecided"
    wrong = Claim("", [below], "", paper_is_wrong=True)
    assert wrong.mark == PAPER_IS_WRONG
    assert Claim("", [clear], "", paper_is_wrong=True).mark == "holds"
    assert Claim("", [unclear], "", paper_is_wrong=True).mark == "undecided"


def test_fewer_than_three_seeds_decide_nothing_unless_nothing_is_drawn():
    assert finding(Margin("", [5.0, 5.1])) == "undecided"
    assert finding(Margin("", [5.0])) == "undecided"
    assert finding(Share("", [True, True], 0.0)) == "undecided"
    assert finding(Margin("", [5.0], exact=True)) == "holds"
    assert finding(sure("", False)) == "does not hold"


@pytest.mark.parametrize(("seeds", "margins"), [(3, 1), (3, 6), (10, 4)])
def test_a_claim_on_the_edge_is_called_wrongly_one_time_in_forty(seeds, margins):
    """All differences are zero: neither verdict is right, and each comes at most as often as its level says."""
    rng = np.random.default_rng(0)
    draws = rng.standard_normal((3000, margins, seeds))
    found = [finding(*(Margin("", values) for values in one)) for one in draws]
    slack = 4 * np.sqrt(0.025 * 0.975 / len(found))
    assert found.count("holds") / len(found) < 0.025 + slack
    assert found.count("does not hold") / len(found) < 0.025 + slack


def test_what_decided_is_the_clearest_against_the_claim():
    two = [Margin("far", [-9.0, -9.1, -8.9]), Margin("near", [1.0, 1.1, 0.9])]
    assert Claim("", two, "").decided_by == "Clearest, far: -9 (-9.25 to -8.75)."
    assert Claim("", two[1:], "").decided_by == "near: +1 (+0.752 to +1.25)."
    assert Claim("", [Margin("one", [2.0])], "").decided_by == "one: +2, from 1 seed only."


def test_a_claim_that_points_the_other_way_needs_a_reason():
    below = [Margin("", [-1.0])]
    assert not Claim("", below, "").expected
    assert Claim("", below, "", unlike="Our data are small.").expected
    assert Claim("", [Margin("", [1.0])], "").expected


def test_differences_are_taken_under_the_same_seed():
    found = Records("quick", {"a": {"0": {"v": 1}, "2": {"v": 9}}, "b": {"0": {"v": 3}, "1": {"v": 8}, "2": {"v": 4}}})
    assert found.above("b", "a", "v").values == [2.0, -5.0]
    assert found.above("b", "a", "v", 1).what == "b, less a, less 1"
    assert [margin.values for margin in found.within("a", "b", "v", 3)] == [[5.0, -2.0], [1.0, 8.0]]


NEAR, FAR = [1.0, 1.005, 0.995, 1.0], [5.0, 5.01, 4.99, 5.0]


def verdicts(*rows):
    return [row.verdict(rows) for row in rows]


def test_a_row_agrees_only_if_its_interval_could_tell():
    assert Row("", 1.0, NEAR).verdict([]) == "agrees"
    assert Row("", 1.0, NEAR[:2]).verdict([]) == "undecided"
    assert Row("", 1.0, [1.0, 1.02, 0.98, 1.0]).verdict([]) == "undecided"
    assert Row("", 1.0, [0.2, 1.8, 1.0, 1.1]).verdict([]) == "undecided"
    assert Row("", 1.0, [0.2, 1.8, 1.0, 1.1], 1.0).verdict([]) == "agrees"  # the paper's own error is as large
    assert Row("", 1.0, [0.2, 1.8, 1.0, 1.1], 1.0, runs=100).verdict([]) == "undecided"
    assert Row("", 1.2, NEAR).verdict([]) == "differs"
    assert Row("", 1.2, NEAR, tolerance=0.3).verdict([]) == "agrees"
    assert Row("", 1.0, [1.0], exact=True).verdict([]) == "agrees"
    assert Row("", None, NEAR).verdict([]) == "not printed"


def test_a_value_that_cannot_be_or_is_not_the_papers_does_not_agree():
    assert Row("", 1.0, NEAR, impossible="E20").verdict([]) == "impossible"
    assert Row("", 1.0, NEAR, reference="Theorem 1").verdict([]) == "matches"
    assert Row("", 2.0, NEAR, reference="Theorem 1").verdict([]) == "differs"


def test_a_row_keeps_its_order_by_paired_intervals():
    noise = np.array([0.0, 3.0, -3.0, 0.5])  # shared by the seeds: differences do not know it
    lower, upper, between = (np.add(values, noise).tolist() for values in (NEAR, FAR, np.add(FAR, 0.001 * noise)))
    assert verdicts(Row("", 20.0, lower, among="x"), Row("", 30.0, upper, among="x")) == ["same order"] * 2
    assert verdicts(Row("", 30.0, lower, among="x"), Row("", 20.0, upper, among="x")) == ["differs"] * 2
    assert verdicts(Row("", 20.0, upper, among="x"), Row("", 30.0, between, among="x")) == ["undecided"] * 2
    assert verdicts(Row("", 20.0, NEAR, among="x"), Row("", 30.0, FAR, among="y")) == ["differs"] * 2
    same = Row("", 20.0, FAR, 9.0, among="x")  # the paper cannot tell it from the first
    assert (
        verdicts(Row("", 21.0, NEAR, 9.0, among="x"), same, Row("", 99.0, np.add(FAR, 9), among="x"))[0] == "same order"
    )
