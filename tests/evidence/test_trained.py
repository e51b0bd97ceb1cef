"""The rule on losses of trained methods, whose truth is known: they come from splits, and clients share a run's noise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from coterie.evidence import rule
from coterie.evidence.mean_gains import gain, interval
from coterie.evidence.rule import Verdict, decide_scores, judge
from coterie.evidence.scores import Scores

SPLITS, CLIENTS, ROWS = 3, 20, 12
WAYS = {"fedavg": "together", "ditto": "shrunk", "ifca": "groups"}


def scores(seed: int = 0, shared: float = 0.0, constant: float = 1.0, clients: int = CLIENTS, **gains: float) -> Scores:
    """Row losses of local (about 0.5), and of methods that gain on every client; `shared` is noise that all clients of a
    split have in common, and the overall average has a loss of 0.5 + `constant`."""
    rng = np.random.default_rng(seed)
    split, owner = (
        x.reshape(-1) for x in np.meshgrid(np.arange(SPLITS), np.arange(clients).repeat(ROWS), indexing="ij")
    )
    local = 0.5 + 0.05 * rng.normal(size=owner.shape)
    rows = [local + constant + 0.05 * rng.normal(size=owner.shape), local]
    for mean in gains.values():
        own = 0.02 * rng.normal(size=(SPLITS, clients)) + shared * rng.normal(size=(SPLITS, 1))
        rows.append(local - mean - own[split, owner] + 0.05 * rng.normal(size=owner.shape))
    ways = ("constant", "alone", *(WAYS.get(name, "together") for name in gains))
    return Scores(
        "mse", np.stack(rows)[None], split[None], SPLITS, owner, np.arange(clients), clients,
        ("constant", "local", *gains), ways, test_share=0.25,
    )  # fmt: skip


def judged(seed: int = 0, **gains: float) -> Verdict:
    return decide_scores(scores(seed, **gains))


def test_the_simplest_of_equally_good_methods_is_taken() -> None:
    found = judged(ifca=0.2, ditto=0.2, fedavg=0.2)
    assert (found.recommendation, found.method, found.sure, found.shown) == ("together", "fedavg", "clear", "clear")


def test_a_measurably_better_method_is_taken_though_it_is_less_simple() -> None:
    found = judged(ifca=0.4, fedavg=0.2)
    assert (found.recommendation, found.method) == ("groups", "ifca")
    low, high = found.bounds("ifca")
    assert low < 0.4 < high


def test_slightly_better_is_no_reason_for_a_less_simple_method() -> None:
    found = judged(ifca=0.205, fedavg=0.2)
    assert found.losses["ifca"] < found.losses["fedavg"]
    assert found.method == "fedavg"


@pytest.mark.parametrize("constant", [-0.3, 0.0])
def test_what_does_not_beat_the_overall_average_is_no_gain(constant: float) -> None:
    found = judged(constant=constant - 0.2, fedavg=0.2)
    assert (found.recommendation, found.sure, found.proven) == ("alone", "nothing", ())


def test_losses_leave_everybody_alone() -> None:
    found = judged(fedavg=-0.2)
    assert (found.recommendation, found.sure) == ("alone", "clear")


def test_training_noise_that_clients_share_is_no_gain() -> None:
    """Four methods without any gain, whose splits differ by 0.05 for all clients at once: 200 worlds, at most 5 % wrong
    claims and four standard errors more. Errors over clients and rows alone would call most of these worlds clear."""
    wrong, careless = 0, 0
    for seed in range(200):
        made = scores(seed, shared=0.05, fedavg=0.0, ditto=0.0, prox=0.0, ifca=0.0)
        found = judge(made)
        wrong += found.recommendation != "alone" and found.sure != "leaning"
        careless += any(g.mean > found.needed * g.se_clients for g in found.over_alone.values())
    assert wrong <= 0.05 * 200 + 4 * np.sqrt(200 * 0.05 * 0.95)
    assert careless > 100


def test_the_noise_of_training_is_what_test_rows_do_not_explain_of_splits() -> None:
    """The variance over S splits beyond that of their own test rows, v (1 − ρ), over S; pooled over methods and widened by
    Student's t. It adds to the error between clients, or over rows."""
    made = scores(fedavg=0.1, ifca=0.1, shared=0.05)
    found = judge(made)
    each = [[(made.rows[0, 1] - made.rows[0, j])[made.fold[0] == s].mean() for s in range(SPLITS)] for j in (2, 3)]
    rows = [g.se_rows**2 * SPLITS / (1 + 2 * 0.25) for g in found.over_alone.values()]  # of one split
    excess = np.mean(np.var(each, axis=1, ddof=1) - 0.75 * np.array(rows))
    noise = np.sqrt(excess / SPLITS) * stats.t.ppf(1 - 0.05 / 2, 4)
    for g in found.over_alone.values():
        assert g.noise * found.needed == pytest.approx(noise)
        assert g.gate_se() == pytest.approx(np.hypot(g.noise, g.se_clients))
        low, high = interval(g, 0.95)
        assert (high - low) / 2 == pytest.approx(1.96 * g.gate_se(), rel=1e-3)
    few = judge(scores(fedavg=0.1, clients=5)).over_alone["fedavg"]
    assert few.gate_se() == pytest.approx(np.hypot(few.noise, few.se_rows))


def test_half_a_proof_is_a_leaning() -> None:
    """A gain between half of what a proof needs and all of it leans to the method; a smaller one leans to alone."""
    made, found = scores(constant=0.1, fedavg=0.0, clients=8), {}
    rows = made.rows[0, 1] - made.rows[0, 2]
    first = gain(made, 2, 1)
    for share in (0.4, 0.7, 1.4):
        made.rows[0, 2] = made.rows[0, 1] - rows + first.mean - share * judge(made).needed * first.se_rows
        answer = judge(made)
        found[share] = answer.recommendation, answer.sure
    assert found == {0.4: ("alone", "leaning"), 0.7: ("together", "leaning"), 1.4: ("together", "clear")}


def test_alone_is_clear_with_wider_errors_only() -> None:
    """Rows of one unit in training and test flatter alone: its lead must be half as large again."""
    made, found = scores(constant=0.1, fedavg=0.0, clients=8), {}
    rows = made.rows[0, 1] - made.rows[0, 2]
    first = gain(made, 2, 1)
    for errors in (1.1, 1.8):
        made.rows[0, 2] = (
            made.rows[0, 1]
            - rows
            + first.mean
            + errors * judge(made).needed * judge(made).over_alone["fedavg"].gate_se()
        )
        found[errors] = judge(made).sure
    assert found == {1.1: "leaning", 1.8: "clear"}


def test_rows_that_splits_share_count_once() -> None:
    """A row is in a quarter of the splits: of three splits' rows, 1 in 1.5 is new evidence."""
    made = scores(fedavg=0.1)
    np.testing.assert_allclose(made.sizes, SPLITS * ROWS / 1.5)
    alone = gain(made, 2, 1).se_rows
    assert alone == pytest.approx(
        np.sqrt(1.5) * gain(Scores(**{**made.__dict__, "test_share": 0.0}), 2, 1).se_rows, rel=0.02
    )


def test_more_methods_need_more_evidence() -> None:
    """With ten clients and more by sign flips, with fewer by Bonferroni."""
    assert judged(fedavg=0.2).needed < judged(fedavg=0.2, ifca=0.2, ditto=0.2, prox=0.2).needed
    few = judge(scores(fedavg=0.2, ifca=0.2, clients=5))
    df = 5 * SPLITS * ROWS / 1.5 - 5
    assert few.needed == pytest.approx(stats.t.ppf(1 - 0.05 / 2, df))


def test_a_gain_that_most_splits_do_not_show_is_borderline() -> None:
    made = scores(fedavg=0.0)
    lucky = made.fold[0] == 0
    made.rows[0, 2] = made.rows[0, 1] + np.where(lucky, -3.0, 0.01)
    verdict = judge(made)
    clear = replace(verdict, sure="clear", recommendation="together", method="fedavg")
    assert [rule._agrees(part, clear, 0.05, 0, False) for part in made.parts()] == [True, False, False]


def test_the_overall_average_must_be_beaten_by_log_loss_too() -> None:
    found = judge(scores(fedavg=0.2), proper=scores(constant=-0.3, fedavg=0.2))
    assert found.sure == "nothing"


def test_a_run_of_local_alone_has_nothing_to_recommend() -> None:
    found = judged()
    assert (found.recommendation, found.sure, found.method) == ("alone", "leaning", "local")
    assert found.bounds("local") == (0.0, 0.0)
