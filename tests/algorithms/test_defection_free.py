"""Two firms that learn together: nobody's revenue falls, and the deal they reach is the Nash bargain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import coterie as ct
from coterie.algorithms.defection_free import COLUMNS, DefectionFree, DefectionFreeState, ledger
from coterie.base.tree import stack
from coterie.engines.base import ClientStates, Env, context, gather, in_round
from coterie.incentives import nash_bargaining

CURVATURE = np.array([0.3, 0.5, 0.7])  # square roots of f's second derivatives, halved
BEST = 0.95
ONE_STEP = ct.LocalSGD(steps=1, lr=1 / (2 * 0.49), batch_size=None)  # the full gradient, 1/L
QUADRATIC = ct.Task(lambda: nn.Linear(3, 1, bias=False), "mse", "mse")
STARTS = [(0.15, 0.60), (0.35, 0.45), (0.10, 0.80)]


@pytest.fixture(scope="module")
def quadratics() -> ct.Federation:
    """f(w; firm) = 0.05 − c² + Σ aᵢ²(wᵢ ± cᵢ)²: the best common quality is 0.95 at w = 0."""
    rng = np.random.default_rng(0)
    shift, n, data = 0.2, 40, {}
    for name, side in (("small", 1.0), ("large", -1.0)):
        basis = np.linalg.qr(rng.normal(size=(n, 4)))[0] * np.sqrt(n)
        x = basis[:, :3] * CURVATURE
        noise = np.sqrt(1 - BEST - (shift * CURVATURE[0]) ** 2)
        data[name] = (x, side * shift * x[:, 0] + noise * basis[:, 3])
    return ct.Federation.from_arrays(data, test_fraction=0.0, dtype="float64", kind="regression")


def starting(q_low: float, q_high: float) -> DefectionFreeState:
    def model(quality: float, side: float) -> dict[str, Tensor]:
        direction = np.array([side, 1.0, 1.0])
        length = np.sqrt((BEST - quality) / ((CURVATURE * direction) ** 2).sum())
        return {"weight": torch.tensor(length * direction).reshape(1, 3)}

    empty = torch.zeros(0, len(COLUMNS), dtype=torch.float64)
    return DefectionFreeState(stack([model(q_low, 1.0), model(q_high, -1.0)]), empty, torch.tensor(-1))


def run(
    quadratics: ct.Federation,
    start: tuple[float, float],
    rounds: int = 60,
    q: float | None = BEST + 1e-9,
    **options: Any,
) -> ct.Result:
    algorithm = DefectionFree(quality="loss", measure="train", q_max=q, pretrain=0, local=ONE_STEP, **options)
    return ct.fit(algorithm, quadratics, QUADRATIC, rounds=rounds, start=starting(*start), alone=False)


def revenues(result: ct.Result) -> tuple[np.ndarray, np.ndarray]:
    frame = ledger(result).frame
    return frame["revenue_low"].to_numpy(), frame["revenue_high"].to_numpy()


# ---- convex losses: the theorems hold ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("start", "q_low"), [((0.15, 0.60), 0.3437), ((0.35, 0.45), 0.4266), ((0.10, 0.80), 0.2110)])
def test_it_reaches_the_bargain_and_no_round_lowers_a_revenue(
    quadratics: ct.Federation, start: tuple[float, float], q_low: float
) -> None:
    result = run(quadratics, start)
    book = ledger(result)
    first, last = book.frame.iloc[0], book.frame.iloc[-1]
    assert (first["q_low"], first["q_high"]) == pytest.approx(start, abs=1e-9)
    assert book.defection_free(1e-9)
    assert last["q_high"] == pytest.approx(BEST, abs=1e-4)
    assert last["q_low"] == pytest.approx(q_low, abs=2e-4)
    bargain = nash_bargaining(*start, BEST)
    assert last["nash_product"] / bargain.value == pytest.approx(1, abs=2e-3)
    reached, target = result.state.ledger[:, 0], result.state.ledger[:, 3]
    assert bool((reached <= target).all())
    assert float((target - reached).max()) < 1e-6  # twenty steps are enough to follow
    growth = (book.frame["q_high"] / book.frame["q_high"].shift()).max()
    assert 1.02 < growth <= 1.0298


@pytest.mark.parametrize("start", STARTS)
def test_sharing_everything_costs_both_firms_all_revenue(quadratics: ct.Federation, start: tuple[float, float]) -> None:
    low, high = revenues(run(quadratics, start, scheme="complete"))
    assert low[-1] < 1e-4
    assert high[-1] < 1e-3
    assert -np.diff(high).min() > 0.03  # and somebody would have left on the way


def test_if_only_the_high_firm_shares_the_low_firm_overtakes_it(quadratics: ct.Federation) -> None:
    result = run(quadratics, (0.15, 0.6), scheme="high_shares")
    low, high = revenues(result)
    last = ledger(result).frame.iloc[-1]
    assert last["q_low"] > last["q_high"] + 0.003
    assert high[-1] < low[-1]
    assert high[-1] < 0.01 * high[0]


def test_if_only_the_low_firm_shares_and_stands_still_both_gain_but_the_low_firm_less(
    quadratics: ct.Federation,
) -> None:
    one_sided = run(quadratics, (0.15, 0.6), scheme="low_shares", low_mode="frozen")
    low, high = revenues(one_sided)
    assert ledger(one_sided).defection_free(1e-12)
    assert low[-1] > low[0]
    assert high[-1] > high[0]
    deal_low, deal_high = revenues(run(quadratics, (0.15, 0.6)))
    assert deal_low[-1] > 1.5 * low[-1]
    assert deal_high[-1] < high[-1]  # the high firm would rather be alone at the top (erratum EI-8)


def test_a_low_firm_above_the_bargain_never_moves(quadratics: ct.Federation) -> None:
    with pytest.warns(UserWarning, match=r"No deal is possible from the start.*only the high firm is trained"):
        result = run(quadratics, (0.55, 0.65))
    frame = ledger(result).frame
    assert frame["q_low"].nunique() == 1
    assert ledger(result).defection_free(1e-12)
    assert frame["q_high"].iloc[-1] == pytest.approx(BEST, abs=1e-4)


def test_a_simulated_low_firm_gets_its_target_without_training(quadratics: ct.Federation) -> None:
    result = run(quadratics, (0.15, 0.6), low_mode="simulated")
    assert ledger(result).defection_free(1e-9)
    assert ledger(result).frame["q_low"].iloc[-1] == pytest.approx(0.3437, abs=2e-4)
    assert torch.equal(result.state.models["weight"][0], starting(0.15, 0.6).models["weight"][0])


def test_the_roles_belong_to_the_qualities_not_to_the_order(quadratics: ct.Federation) -> None:
    turned = run(quadratics, (0.6, 0.15), rounds=20)
    assert int(turned.state.high) == 0
    straight = run(quadratics, (0.15, 0.6), rounds=20)
    assert int(straight.state.high) == 1
    np.testing.assert_allclose(ledger(turned).frame, ledger(straight).frame, atol=0.02)  # other losses, same story
    assert ledger(turned).frame["q_low"].iloc[0] == pytest.approx(0.15)


# ---- stochastic steps on real networks ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair() -> ct.Federation:
    """Logistic regression; each firm sees a part of the plane."""
    rng = np.random.default_rng(3)
    data = {}
    for name, centre in (("south", -0.7), ("north", 0.7)):
        x = rng.normal(size=(240, 4)) + np.array([0, centre, 0, 0])
        y = (x @ np.array([1.5, -1.0, 0.5, 0.0]) + 0.7 * rng.logistic(size=240) > 0).astype(int)
        data[name] = (x, y)
    return ct.Federation.from_arrays(data, seed=1)


LOGISTIC = ct.Task(lambda: nn.Linear(4, 2), metric=("accuracy", "log_loss"))


def bad_models() -> DefectionFreeState:
    """A low firm whose model is wrong more often than right, and a high firm whose model is poor."""

    def model(*direction: float) -> dict[str, Tensor]:
        weight = torch.tensor(direction)
        return {"weight": torch.stack([-weight, weight]), "bias": torch.zeros(2)}

    models = stack([model(-1.5, 1.0, -0.5, 0.0), model(1.0, 1.0, 0.0, 1.5)])
    return DefectionFreeState(models, torch.zeros(0, len(COLUMNS), dtype=torch.float64), torch.tensor(-1))


@pytest.mark.slow
@pytest.mark.parametrize("measure", ["holdout", "train", "test"])
@pytest.mark.parametrize("quality", ["accuracy", "loss"])
def test_with_random_batches_every_accepted_step_is_safe(pair: ct.Federation, measure: Any, quality: Any) -> None:
    algorithm = DefectionFree(
        measure=measure, quality=quality, pretrain=0, low_steps=5, local=ct.LocalSGD(steps=3, lr=0.2, batch_size=16)
    )
    if quality == "loss":  # both start from small losses: the wrong model's is above one
        algorithm = DefectionFree(measure=measure, quality=quality, pretrain=(0, 4), low_steps=3, local=algorithm.local)
    result = ct.fit(
        algorithm, pair, LOGISTIC, rounds=15, start=bad_models() if quality == "accuracy" else None, alone=False, seed=2
    )
    book, state = ledger(result), result.state
    assert book.defection_free(1e-9)
    assert (np.diff(book.frame["q_low"]) >= 0).all()
    assert (np.diff(book.frame["q_high"]) >= 0).all()
    assert book.frame["q_high"].iloc[-1] > book.frame["q_high"].iloc[0]
    if quality == "accuracy":
        assert book.frame["q_low"].iloc[-1] > book.frame["q_low"].iloc[0] + 0.02  # the low firm is really trained
        moved = (state.models["weight"][0] - bad_models().models["weight"][0]).norm()
        assert float(moved) > 0.01


@pytest.mark.filterwarnings("ignore:No deal is possible from the start")
def test_quality_is_measured_where_the_user_says(pair: ct.Federation) -> None:
    algorithm = DefectionFree(measure="test", pretrain=(0, 5), local=ct.LocalSGD(steps=3, lr=0.2))
    result = ct.fit(algorithm, pair, LOGISTIC, rounds=4, alone=False)
    frame = ledger(result).frame
    for firm, column in ((1 - int(result.state.high), "q_low"), (int(result.state.high), "q_high")):
        model = result.model(pair.clients[firm])
        shares = [(model(x).argmax(1) == y).float().mean() for x, y in map(pair.test, pair.clients)]
        assert frame[column].iloc[-1] == pytest.approx(float(sum(shares)) / 2, abs=1e-6)


def test_held_out_rows_never_train(pair: ct.Federation) -> None:
    env = Env(LOGISTIC, pair, LOGISTIC.init(0), 0, states=ClientStates(2))
    one = np.array([0])
    data = in_round(env, gather(env, one, 200, "train"), one, "train")
    ctx = context(env, {name: t[0] for name, t in data.items()}, {})
    algorithm = DefectionFree(holdout=0.25)
    train, held = (algorithm._part(ctx, held=h).mask for h in (False, True))
    assert torch.equal(train + held, ctx.mask)
    assert int(held.sum()) == 45  # a quarter of 180
    assert int(train.sum()) == 135
    other = algorithm._part(ctx, held=False)
    swapped = torch.where(held.bool(), 1 - ctx.y, ctx.y)
    number = torch.tensor(0)
    moves = [
        algorithm.train(c, env.initial, number).send["move"] for c in (ctx, type(ctx)(**{**vars(ctx), "y": swapped}))
    ]
    assert torch.equal(moves[0]["weight"], moves[1]["weight"])
    assert int(other.n) == 135


def test_resumed_it_ends_bit_identically(pair: ct.Federation, tmp_path: Path) -> None:
    algorithm = DefectionFree(pretrain=(0, 3), low_steps=3, local=ct.LocalSGD(steps=3, lr=0.2, batch_size=16))
    options: dict[str, Any] = {"seed": 5, "alone": False, "channels": [ct.exchange.Dropout(0.1)]}
    whole = ct.fit(algorithm, pair, LOGISTIC, rounds=6, **options)
    ct.fit(algorithm, pair, LOGISTIC, rounds=3, out=tmp_path, **options)
    again = ct.fit(algorithm, pair, LOGISTIC, rounds=6, out=tmp_path, resume=True, **options)
    assert torch.equal(whole.state.ledger, again.state.ledger)
    assert all(torch.equal(t, again.state.models[name]) for name, t in whole.state.models.items())
    assert ledger(again).frame.equals(ledger(whole).frame)


def test_a_measure_too_coarse_for_the_pace_does_not_stop_the_high_firm() -> None:
    """25 and 38 rows see no gain below two per cent; growing faster than the pace costs nobody revenue."""
    two = ct.datasets.heart(test_fraction=0.5).subset(["va", "cleveland"])
    algorithm = DefectionFree(pretrain=(0, 2), local=ct.LocalSGD(steps=2, lr=0.05))
    with pytest.warns(UserWarning, match="No deal is possible from the start"):
        book = ledger(ct.fit(algorithm, two, rounds=6, alone=False))
    assert book.frame["q_high"].iloc[-1] > book.frame["q_high"].iloc[0] + 0.05
    assert book.defection_free(1e-9)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.filterwarnings("ignore:No deal is possible from the start")
def test_lost_replies_never_cost_revenue(pair: ct.Federation, seed: int) -> None:
    algorithm = DefectionFree(pretrain=(0, 3), low_steps=3, local=ct.LocalSGD(steps=3, lr=0.2, batch_size=16))
    result = ct.fit(algorithm, pair, LOGISTIC, rounds=12, seed=seed, channels=[ct.exchange.Dropout(0.2)], alone=False)
    assert ledger(result).defection_free(1e-9)
    assert 1 <= len(ledger(result).rows) <= 13


@pytest.mark.filterwarnings("ignore:No deal is possible from the start")
def test_the_participation_audit_works_on_it(pair: ct.Federation) -> None:
    algorithm = DefectionFree(pretrain=(0, 3), low_steps=3, local=ct.LocalSGD(steps=3, lr=0.2, batch_size=16))
    audit = ct.fit(algorithm, pair, LOGISTIC, rounds=3).participation(rule="mean")
    assert list(audit.table.index) == ["south", "north"]
    if audit.leavers:
        assert audit.coalition().members == []  # no deal between one firm


# ---- test rows, and a best quality that nobody knows --------------------------------------------------------------------


def test_a_ledger_on_test_rows_has_error_bars(pair: ct.Federation) -> None:
    algorithm = DefectionFree(pretrain=0, low_steps=5, local=ct.LocalSGD(steps=3, lr=0.2, batch_size=16))
    result = ct.fit(algorithm, pair, LOGISTIC, rounds=6, start=bad_models(), alone=False, seed=2)
    book = ledger(result, rows="test")
    frame, high = book.frame, int(result.state.high)
    assert list(frame["t"]) == list(range(7))
    for firm, column in ((1 - high, "q_low"), (high, "q_high")):
        model = result.model(pair.clients[firm])
        right = [(model(x).argmax(1) == y).double() for x, y in map(pair.test, pair.clients)]
        assert frame[column].iloc[-1] == pytest.approx(float(sum(r.mean() for r in right)) / 2, abs=1e-6)
        error = float(sum(r.var() / len(r) for r in right)) ** 0.5 / 2
        assert frame[f"{column}_se"].iloc[-1] == pytest.approx(error, rel=1e-4)
    assert frame["change_low"].iloc[0] == 0
    assert frame["change_low_se"].iloc[0] == pytest.approx(0, abs=1e-12)
    moved = frame["revenue_high"].iloc[-1] - frame["revenue_high"].iloc[0]
    assert frame["change_high"].iloc[-1] == pytest.approx(moved, abs=1e-9)
    assert 0 < frame["change_high_se"].iloc[-1] < 2 * frame["revenue_high_se"].iloc[-1]
    assert set(book.losers()) <= {"low", "high"}
    assert ledger(result).defection_free(1e-9)


def test_the_errors_of_revenues_are_those_of_drawn_qualities() -> None:
    from coterie.incentives import Duopoly
    from coterie.incentives.market.revenue_ledger import TestedLedger

    rng = np.random.default_rng(0)
    root = 0.01 * rng.normal(size=(4, 4))
    book = TestedLedger(((0.3, 0.7, 0.0),), (1,), ((0.2, 0.6),), (root @ root.T,))
    drawn = np.array([0.2, 0.6, 0.3, 0.7]) + rng.normal(size=(4000, 4)) @ root.T
    then, now = ([Duopoly(*q).revenues for q in part] for part in (drawn[:, :2], drawn[:, 2:]))
    for firm in ("low", "high"):
        changes = [getattr(a, firm) - getattr(b, firm) for a, b in zip(now, then, strict=True)]
        assert book.frame[f"change_{firm}_se"][0] == pytest.approx(np.std(changes), rel=0.06)  # 4 errors of an sd


def test_an_unknown_best_quality_is_estimated(quadratics: ct.Federation, pair: ct.Federation) -> None:
    algorithm = DefectionFree(quality="loss", measure="train", q_max=None, pretrain=0, local=ONE_STEP)
    result = ct.fit(algorithm, quadratics, QUADRATIC, rounds=60, start=starting(0.15, 0.6), alone=False)
    assert float(result.state.best) == pytest.approx(BEST, abs=1e-3)
    assert ledger(result).defection_free(1e-9)
    assert ledger(result).frame["q_low"].iloc[-1] == pytest.approx(0.3437, abs=2e-3)
    with pytest.raises(ct.errors.ConfigError, match="needs at least two test rows"):
        ledger(result, rows="test")
    with pytest.raises(ct.errors.ConfigError, match="rows='measured' or rows='test'"):
        ledger(result, rows="train")  # type: ignore[arg-type]


def test_no_deal_where_the_better_firm_is_as_good_as_can_be(quadratics: ct.Federation) -> None:
    with pytest.warns(UserWarning, match=r"No deal is possible.*q_max 0.95 \(estimated\)"):
        run(quadratics, (0.9, BEST - 1e-6), rounds=1, q=None)


# ---- what it refuses -------------------------------------------------------------------------------------------------


def test_it_says_what_is_wrong(
    fed: ct.Federation, task: ct.Task, pair: ct.Federation, quadratics: ct.Federation
) -> None:
    with pytest.raises(ct.errors.ConfigError, match=r"exactly two firms; this federation has 12.*subset"):
        ct.fit(DefectionFree(), fed, task)
    with pytest.raises(ct.errors.ConfigError, match="quality='loss'"):
        ct.fit(DefectionFree(), quadratics, QUADRATIC)
    with pytest.raises(ct.errors.ConfigError, match="Raise q_max"):
        ct.fit(DefectionFree(q_max=0.2), pair, LOGISTIC, rounds=1)
    with pytest.raises(ct.errors.ConfigError, match="a firm has none"):
        ct.fit(DefectionFree(measure="test", quality="loss", pretrain=0), quadratics, QUADRATIC, rounds=1)
    with pytest.raises(ct.errors.ConfigError, match="keeps a revenue ledger; got a LocalState"):
        ledger(ct.fit(ct.Local(), pair, LOGISTIC, rounds=0, alone=False))
    assert ledger(ct.fit(DefectionFree(), pair, LOGISTIC, rounds=0, alone=False)).rows == ()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scheme": "none"}, "scheme to be one of 'defection_free'"),
        ({"quality": "auc"}, "quality to be one of"),
        ({"measure": "valid"}, "measure to be one of"),
        ({"low_mode": "sleeping"}, "low_mode to be one of"),
        ({"holdout": 1.0}, "holdout to be a number between 0 and 1"),
        ({"q_max": 1.5}, "q_max to be a number above 0 and at most 1, or None"),
        ({"pace": 1.0}, "pace to be a number above 1"),
        ({"low_steps": 0}, "low_steps to be a whole number ≥ 1"),
        ({"pretrain": (0, -1)}, "pretrain to be a whole number ≥ 0"),
        ({"scheme": "complete", "low_mode": "simulated"}, "has a target only"),
    ],
)
def test_bad_settings_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ct.errors.ConfigError, match=words):
        DefectionFree(**options)
