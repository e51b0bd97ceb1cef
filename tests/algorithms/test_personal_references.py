"""FedProx, SCAFFOLD, FedRep, APFL, pFedMe, Per-FedAvg, mutual learning and QuPeD: their ends, and their steps by hand."""

import numpy as np
import pytest
import torch

import coterie as ct
from coterie.algorithms.perfedavg import hessian_times
from coterie.algorithms.quped import nearest

LOCAL = ct.LocalSGD(steps=3, lr=0.05, batch_size=5)
STEP = ct.LocalSGD(steps=1, lr=0.1, batch_size=None)
C = (0.0, 10.0)


def start(w):
    return {"weight": torch.tensor([[w]], dtype=torch.float64)}


def by_hand(world, algorithm, rounds=2):
    """Two clients with losses (w − 0)² and (w − 10)², from w = 4."""
    return ct.fit(
        algorithm, world.quadratics([[c] for c in C]), world.linear(1), rounds=rounds, start=start(4.0), alone=False
    )


def common(result):
    return float(result.state.model["weight"])


def same(world, one, two, rounds=3, **how):
    fed, _ = world.planted(2, 6)
    results = [ct.fit(a, fed, world.linear(4), rounds=rounds, alone=False) for a in (one, two)]
    np.testing.assert_allclose(*(world.personal(r) for r in results), **({"rtol": 1e-9} | how))
    return results


def test_fedprox_without_pull_is_fedavg_and_its_pull_by_hand(world):
    same(world, ct.FedProx(local=LOCAL, mu=0.0), ct.FedAvg(LOCAL))
    result = by_hand(world, ct.FedProx(local=ct.LocalSGD(steps=2, lr=0.1, batch_size=None), mu=3.0), rounds=1)
    ends = []
    for c in C:
        w = 4.0
        for _ in range(2):
            w -= 0.1 * (2 * (w - c) + 3 * (w - 4))
        ends.append(w)
    assert common(result) == pytest.approx(np.mean(ends), rel=1e-12)


@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffold_starts_as_fedavg_and_then_corrects(world, option):
    same(world, ct.Scaffold(LOCAL, option=option), ct.FedAvg(LOCAL), rounds=1)  # all control variates are zero
    result = by_hand(world, ct.Scaffold(STEP, option=option))
    x, own = 4.0, [0.0, 0.0]
    for _ in range(2):
        mean = np.mean(own)
        y = [x - 0.1 * (2 * (x - c) + mean - o) for c, o in zip(C, own, strict=True)]
        own = [2 * (x - c) for c in C]  # one full-batch step: both options are the gradient at x
        x = np.mean(y)
    assert common(result) == pytest.approx(x, rel=1e-12)
    np.testing.assert_allclose(float(result.state.control["weight"]), np.mean(own), rtol=1e-12)


@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffold_with_one_of_two_clients_moves_its_control_by_half(world, option):
    """Round 1: c_0 = g(x), c = c_0/2. Round 2: the step follows g(x) + c − c_0."""
    fed = world.quadratics([[1.0], [10.0]])
    result = ct.fit(ct.Scaffold(STEP, option=option), fed, world.linear(1), rounds=2, cohort=world.These(0),
                    start=start(4.0), alone=False)  # fmt: skip
    first = 2 * (4.0 - 1)
    x = 4.0 - 0.1 * first
    second = 2 * (x - 1)
    assert common(result) == pytest.approx(x - 0.1 * (second + first / 2 - first), rel=1e-12)
    assert float(result.state.control["weight"]) == pytest.approx(first / 2 + (second - first) / 2, rel=1e-12)


def test_scaffold_knows_how_far_its_steps_went_in_epochs():
    """Option II divides by the sum of the learning rates, which ragged clients have not in common."""
    data = {i: (np.ones((n, 1)), np.full(n, c)) for i, (n, c) in enumerate([(8, 0.0), (24, 10.0)])}
    fed = ct.Federation.from_arrays(data, dtype="float64", test_fraction=0.25)
    task = ct.Task(lambda: torch.nn.Linear(1, 1, bias=False), loss="mse")
    rates = ct.LocalSGD(epochs=1, lr=1e-9, batch_size=4, schedule=ct.schedules.Warmup(2))
    result = ct.fit(ct.Scaffold(rates), fed, task, rounds=2, start=start(4.0), alone=False)
    controls = result.evaluation.env.states.values["control"]["weight"][:2].flatten()
    np.testing.assert_allclose(controls, [2 * 4.0, 2 * (4.0 - 10)], rtol=1e-5)
    with pytest.raises(ct.errors.ConfigError, match="plain steps"):
        ct.Scaffold(ct.LocalSGD(momentum=0.9))


def test_fedrep_shares_the_body_and_keeps_heads(world):
    fed, _ = world.planted(2, 6)
    task = world.linear(4, hidden=3)
    result = ct.fit(ct.FedRep(local=LOCAL), fed, task, rounds=2, alone=False)
    live = result.evaluation
    models = live.personal(live.everyone())
    assert float(models["0.weight"].std(0).max()) == 0
    assert float(models["1.weight"].std(0).max()) > 0.01
    named = ct.fit(ct.FedRep(head=["1"], local=LOCAL), fed, task, rounds=2, alone=False)
    np.testing.assert_array_equal(world.personal(result), world.personal(named))
    with pytest.raises(ct.errors.ConfigError, match="'nine'"):
        ct.fit(ct.FedRep(head=["nine"]), fed, task, rounds=1)


def test_fedrep_all_head_is_training_alone(world):
    fed, _ = world.planted(2, 6)
    one, two = (
        ct.fit(a, fed, world.linear(4), rounds=3, alone=False) for a in (ct.FedRep(local=LOCAL), ct.Local(LOCAL))
    )
    kept = [r.evaluation.env.states.values[k]["weight"] for r, k in ((one, "head"), (two, "model"))]
    np.testing.assert_allclose(*kept, rtol=1e-12)
    assert (one.history["bytes_up"] == 0).all()


def test_apfl_between_its_ends_and_by_hand(world):
    same(world, ct.APFL(alpha=0.0, adapt=False, local=LOCAL), ct.FedAvg(LOCAL))
    same(world, ct.APFL(alpha=1.0, adapt=False, local=LOCAL), ct.Local(LOCAL))
    result = by_hand(world, ct.APFL(alpha=0.5, local=STEP))
    w, v, a = 4.0, [4.0, 4.0], [0.5, 0.5]
    for _ in range(2):
        ws = [w - 0.1 * 2 * (w - c) for c in C]
        for i, c in enumerate(C):
            g = 2 * (a[i] * v[i] + (1 - a[i]) * w - c)
            v[i], a[i] = v[i] - 0.1 * a[i] * g, min(max(a[i] - 0.1 * (v[i] - w) * g, 0), 1)
        w = np.mean(ws)
    np.testing.assert_allclose(
        world.personal(result).ravel(), [a[i] * v[i] + (1 - a[i]) * w for i in (0, 1)], rtol=1e-12
    )


@pytest.mark.parametrize("algorithm", [ct.APFL(local=LOCAL), ct.QuPeD(bits=2, local=LOCAL)])
def test_a_client_that_never_took_part_uses_the_common_model(world, algorithm):
    """With four weights and four centres a quantised model is the model itself."""
    fed, _ = world.planted(2, 6)
    result = ct.fit(algorithm, fed, world.linear(4), rounds=5, cohort=world.These(0, 1), alone=False)
    models, common = world.personal(result), result.state.model["weight"].numpy()
    np.testing.assert_allclose(models[2:], np.repeat(common, 4, 0), rtol=1e-12)
    assert np.abs(models[:2] - common).max() > 0.01


def test_pfedme_between_its_ends_and_by_hand(world):
    one = ct.LocalSGD(steps=1, lr=0.05, batch_size=5)
    fed, _ = world.planted(2, 6)
    endless, fedavg, apart, local = (
        ct.fit(a, fed, world.linear(4), rounds=3, alone=False)
        for a in (
            ct.PFedMe(lam=1e6, lr=0.05, inner=3, local=one),
            ct.FedAvg(one),
            ct.PFedMe(lam=0.0, inner=1, local=one),
            ct.Local(one),
        )
    )
    np.testing.assert_allclose(endless.state.model["weight"], fedavg.state.model["weight"], rtol=1e-4)
    kept = [r.evaluation.env.states.values["model"]["weight"] for r in (apart, local)]
    np.testing.assert_allclose(*kept, rtol=1e-12)
    result = by_hand(world, ct.PFedMe(lam=2.0, inner=2, lr=0.3, beta=0.5, local=STEP), rounds=1)
    sent = []
    for c in C:
        theta = 4.0
        for _ in range(2):
            theta -= 0.1 * (2 * (theta - c) + 2 * (theta - 4.0))
        sent.append(4.0 - 0.3 * 2 * (4.0 - theta))
    assert common(result) == pytest.approx(4.0 + 0.5 * (np.mean(sent) - 4.0), rel=1e-12)


@pytest.mark.parametrize("order", ["first", "hessian"])
def test_per_fedavg_by_hand_and_without_a_step_inside(world, order):
    same(world, ct.PerFedAvg(alpha=0.0, order=order, local=ct.LocalSGD(steps=3, lr=0.05, batch_size=None)),
         ct.FedAvg(ct.LocalSGD(steps=3, lr=0.05, batch_size=None)))  # fmt: skip
    result = by_hand(world, ct.PerFedAvg(alpha=0.2, order=order, local=STEP), rounds=1)
    factor = 1 - 0.2 * 2 if order == "hessian" else 1.0  # ∇² = 2
    w = np.mean([4 - 0.1 * factor * 2 * (4 - 0.2 * 2 * (4 - c) - c) for c in C])
    assert common(result) == pytest.approx(w, rel=1e-12)
    np.testing.assert_allclose(world.personal(result).ravel(), [w - 0.2 * 2 * (w - c) for c in C], rtol=1e-12)


def test_a_hessian_times_a_vector_against_differences_of_gradients(fed64, task):
    x, y = fed64.train(fed64.clients[5])
    mask, zero = torch.ones(len(y), dtype=torch.float64), torch.zeros((), dtype=torch.int64)
    start = task.init(0, torch.float64)
    ctx = ct.exchange.Context(task, x, y, mask, mask.sum(), zero, zero, 0, start)
    vector = task.init(1, torch.float64)
    up, down = (ctx.grad({k: t + s * 1e-5 * vector[k] for k, t in start.items()}) for s in (1, -1))
    for name, product in hessian_times(ctx, start, vector).items():
        torch.testing.assert_close(product, (up[name] - down[name]) / 2e-5, rtol=1e-5, atol=1e-8)


def test_mutual_learning_between_its_ends_and_by_hand(world):
    results = same(world, ct.MutualLearning(alpha=1.0, beta=1.0, local=LOCAL), ct.Local(LOCAL))
    fed, _ = world.planted(2, 6)
    np.testing.assert_allclose(
        results[0].state.model["weight"],
        ct.fit(ct.FedAvg(LOCAL), fed, world.linear(4), rounds=3, alone=False).state.model["weight"], rtol=1e-9,
    )  # fmt: skip
    result = by_hand(world, ct.MutualLearning(alpha=0.3, beta=0.6, local=STEP))
    meme, own = 4.0, [4.0, 4.0]
    for _ in range(2):
        memes = [meme - 0.1 * (0.6 * 2 * (meme - c) + 0.4 * 2 * (meme - v)) for c, v in zip(C, own, strict=True)]
        own = [v - 0.1 * (0.3 * 2 * (v - c) + 0.7 * 2 * (v - meme)) for c, v in zip(C, own, strict=True)]
        meme = np.mean(memes)
    np.testing.assert_allclose([common(result), *world.personal(result).ravel()], [meme, *own], rtol=1e-12)


def test_quped_without_distillation_is_training_alone_and_by_hand(world):
    same(world, ct.QuPeD(lam=0.0, local=LOCAL), ct.Local(LOCAL))
    result = by_hand(world, ct.QuPeD(lam=0.25, local=STEP))
    w, own = 4.0, [4.0, 4.0]
    for _ in range(2):
        own = [x - 0.1 * (0.75 * 2 * (x - c) + 0.25 * 2 * (x - w)) for c, x in zip(C, own, strict=True)]
        w = np.mean([w - 0.1 * 0.25 * 2 * (w - x) for x in own])
    np.testing.assert_allclose([common(result), *world.personal(result).ravel()], [w, *own], rtol=1e-12)


def test_a_quantised_personal_model_has_few_values_and_its_bytes_are_counted(fed, task):
    result = ct.fit(ct.QuPeD(bits=2, local=LOCAL), fed, task, rounds=3, alone=False)
    live = result.evaluation
    for t in live.personal(live.everyone()).values():
        assert all(len(np.unique(one)) <= 4 for one in t.flatten(1).numpy())
    numbers = 4 * 6 + 6 + 6 * 3 + 3
    assert result.history["model_bytes"].iloc[-1] == numbers * 2 / 8 + 4 * (4 * 4)
    assert nearest(torch.tensor([0.4, 0.6, -3.0]), torch.tensor([0.0, 1.0]))[0].tolist() == [0.0, 1.0, 0.0]
    with pytest.raises(ct.errors.ConfigError, match="bits to be a whole number from 1 to 8, or None"):
        ct.QuPeD(bits=9)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ct.FedProx(mu=-1.0), lambda: ct.Scaffold(option="III"), lambda: ct.APFL(alpha=1.5),
        lambda: ct.PFedMe(lam=-1.0),
        lambda: ct.PerFedAvg(order="third"), lambda: ct.MutualLearning(alpha=2.0), lambda: ct.QuPeD(lam=2.0),
        lambda: ct.FedProx(mu="1"), lambda: ct.PFedMe(lam=float("inf")), lambda: ct.Scaffold(server_lr=True),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_meant(make):
    with pytest.raises(ct.errors.ConfigError, match="got"):
        make()


@pytest.mark.parametrize("local", [None, "sgd", ct.LocalSGD])
def test_local_steps_that_are_none(local, fed, task):
    with pytest.raises(ct.errors.ConfigError, match="FedAvg needs local to be steps, such as LocalSGD"):
        ct.FedAvg(local=local)
