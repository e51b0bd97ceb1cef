"""IFCA: exact single steps, and everything around them."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import coterie as ct
from coterie.algorithms.ifca import EarlyStop
from coterie.learning.metrics import cluster_accuracy, parameter_distance

STEP = ct.LocalSGD(steps=1, lr=0.1, batch_size=None)


def begin(algorithm, fed, task, models):
    """A state with the given models (one row each)."""
    state = ct.fit(algorithm, fed, task, rounds=0, alone=False).state
    return replace(state, models={"weight": torch.tensor(models, dtype=torch.float64).unsqueeze(1)}, started=True)


def after(world, algorithm, models, rounds=1, **options):
    """Five clients at 0, 0, 10, 10, 10 with F_i(w) = (w − c_i)²."""
    fed, task = world.quadratics([[0], [0], [10], [10], [10]]), world.linear(1)
    result = ct.fit(
        algorithm, fed, task, rounds=rounds, start=begin(algorithm, fed, task, models), alone=False, **options
    )
    return result.state.models["weight"].flatten().tolist()


# ---- one step --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("normalise", "everyone", "some"),
    [
        ("m", (1 - 0.1 / 5 * 4, 8 + 0.1 / 5 * 12), (1 - 0.1 / 5 * 2, 8 + 0.1 / 5 * 8)),
        ("participants", (1 - 0.1 / 5 * 4, 8 + 0.1 / 5 * 12), (1 - 0.1 / 3 * 2, 8 + 0.1 / 3 * 8)),
        ("cluster", (1 - 0.1 * 2, 8 + 0.1 * 4), (1 - 0.1 * 2, 8 + 0.1 * 4)),
    ],
)
def test_option_1_divides_as_told(world, normalise, everyone, some):
    """Gradients are 2(1 − 0) = 2 and 2(8 − 10) = −4 a client; clients 0, 2, 3 take part in `some` (erratum EC-3)."""
    ifca = ct.IFCA(clusters=2, local=STEP, option="gradient", normalise=normalise)
    assert after(world, ifca, [[1], [8]]) == pytest.approx(everyone, abs=1e-12)
    assert after(world, ifca, [[1], [8]], cohort=world.These(0, 2, 3)) == pytest.approx(some, abs=1e-12)


def test_option_2_averages_local_models(world):
    ifca = ct.IFCA(clusters=2, local=replace(STEP, steps=3))
    shrink = (1 - 2 * 0.1) ** 3
    assert after(world, ifca, [[1], [8]]) == pytest.approx((shrink, 10 - 2 * shrink), abs=1e-12)


def test_option_2_averages_over_the_cluster_not_over_all(world):
    """A stray client at 2 joins the first cluster: the mean of two different local models."""
    fed, task = world.quadratics([[0], [2], [10], [10]]), world.linear(1)
    ifca = ct.IFCA(clusters=2, local=STEP)
    result = ct.fit(ifca, fed, task, rounds=1, start=begin(ifca, fed, task, [[1], [8]]), alone=False)
    assert result.state.models["weight"].flatten().tolist() == pytest.approx([(0.8 + 1.2) / 2, 8.4], abs=1e-12)


@pytest.mark.parametrize("option", ["model", "gradient"])
def test_an_empty_cluster_keeps_its_model(world, option):
    ifca = ct.IFCA(clusters=2, local=STEP, option=option)
    assert after(world, ifca, [[5], [99]], rounds=4)[1] == 99


@pytest.mark.parametrize("option", ["model", "gradient"])
def test_a_cluster_without_participants_keeps_its_model(world, option):
    one = after(
        world, ct.IFCA(clusters=2, local=STEP, option=option, normalise="cluster"), [[1], [8]], cohort=world.These(2, 4)
    )
    assert one == pytest.approx((1, 8.4), abs=1e-12)


def test_ties_go_to_the_lowest_index(world):
    moved = after(world, ct.IFCA(clusters=3, local=STEP), [[4], [4], [4]])
    assert moved[1:] == [4, 4]
    assert moved[0] != 4


def test_samples_may_weigh(world):
    """Client 0 with one sample at 0, client 1 with three at 1, both in the first cluster."""
    fed = ct.Federation.from_flat(
        np.ones((5, 1)),
        np.array([0.0, 1, 1, 1, 10]),
        sizes=np.array([1, 3, 1]),
        clients=range(3),
        n_test=np.zeros(3, np.int64),
        kind="regression",
        dtype="float64",
    )
    for weighted, mean in ((True, 3 / 4), (False, 1 / 2)):
        ifca = ct.IFCA(
            clusters=2, local=replace(STEP, lr=0.5), samples_weighted=weighted
        )  # lr ½ lands on the client's mean
        state = begin(ifca, fed, world.linear(1), [[0.3], [9]])
        result = ct.fit(ifca, fed, world.linear(1), rounds=1, start=state, alone=False)
        assert result.state.models["weight"].flatten().tolist() == pytest.approx([mean, 10], abs=1e-12)
    with pytest.raises(ct.errors.ConfigError, match="participants"):
        ct.IFCA(clusters=2, option="gradient", samples_weighted=True)


def test_resampling_uses_disjoint_parts_for_choosing_and_for_the_step():
    """T = 2 rounds, eight samples: rounds use samples (0, 1 | 2, 3) and (4, 5 | 6, 7)."""
    y = np.array([0.0, 0, 10, 10, 10, 10, 4, 4])
    fed = ct.Federation.from_flat(
        np.ones((8, 1)), y, sizes=np.array([8]), clients=[0], n_test=np.array([0]), kind="regression", dtype="float64"
    )
    task = ct.Task(lambda: torch.nn.Linear(1, 1, bias=False), loss="mse")
    ifca = ct.IFCA(clusters=2, local=STEP, option="gradient", resample=2)
    state = begin(ifca, fed, task, [[0], [10]])
    models = [
        ct.fit(ifca, fed, task, rounds=t, start=state, alone=False).state.models["weight"].flatten().tolist()
        for t in (1, 2)
    ]
    assert models[0] == pytest.approx([0.1 * 2 * 10, 10], abs=1e-12)  # chosen on zeros, stepped on tens
    assert models[1] == pytest.approx([2, 10 - 0.1 * 2 * 6], abs=1e-12)  # chosen on tens, stepped on fours


@pytest.mark.parametrize("wrong", [{"clusters": 0}, {"option": "x"}, {"start": "x"}, {"normalise": "x"}, {"stop": 2}])
def test_bad_settings_are_refused(wrong):
    with pytest.raises(ct.errors.ConfigError):
        ct.IFCA(**wrong)


# ---- starts ----------------------------------------------------------------------------------------------------------


def test_the_start_from_updates_finds_planted_groups_where_random_starts_do_not(world):
    local = ct.LocalSGD(steps=5, lr=0.05, batch_size=None)
    scores = {"updates": [], "random": []}
    for seed in range(8):
        fed, _ = world.planted(4, 24, seed=seed)
        for start, found in scores.items():
            result = ct.fit(
                ct.IFCA(clusters=4, local=local, start=start), fed, world.linear(4), rounds=15, seed=seed, alone=False
            )
            found.append(cluster_accuracy(result.clusters.to_numpy(), fed.clusters))
    assert min(scores["updates"]) == 1
    assert np.mean(np.array(scores["random"]) == 1) <= 0.75


def test_the_start_is_the_mean_local_model_of_each_group(world):
    """Two pairs that pull opposite ways; and two that pull the same way, near and far, one round later."""
    ifca = ct.IFCA(clusters=2, local=replace(STEP, lr=0.5))  # lr ½: a client's update lands on its centre
    fed, task = world.quadratics([[-100], [-101], [100], [101]]), world.linear(1)
    result = ct.fit(ifca, fed, task, rounds=1, alone=False)
    assert sorted(result.state.models["weight"].flatten().tolist()) == pytest.approx([-100.5, 100.5], abs=1e-9)
    fed = world.quadratics([[0], [1], [100], [101]])
    result = ct.fit(ifca, fed, task, rounds=2, alone=False)
    assert sorted(result.state.models["weight"].flatten().tolist()) == pytest.approx([0.5, 100.5], abs=1e-9)


def test_the_start_asks_everybody_whoever_is_in_the_first_cohort(world):
    """Three clients a round cannot show four groups; those who do not answer are missed by nobody."""
    fed, _ = world.planted(4, 24, d=4, samples=40)
    for channels in ([], [ct.exchange.Dropout(0.3)]):
        counted = world.Count()
        options = {"cohort": 3, "channels": [counted, *channels], "alone": False}
        result = ct.fit(ct.IFCA(clusters=4, local=replace(STEP, steps=10)), fed, world.linear(4), rounds=12, **options)
        assert counted.asks[:3] == [24, 3, 3]
        assert cluster_accuracy(result.clusters.to_numpy(), fed.clusters) == 1


def test_it_finds_the_parameters_of_planted_groups(world):
    fed, theta = world.planted(3, 30, noise=0.1)
    result = ct.fit(
        ct.IFCA(clusters=3, local=ct.LocalSGD(steps=5, lr=0.05, batch_size=None)), fed, world.linear(4), rounds=40
    )
    assert parameter_distance(result.state.models, theta) < 0.1
    assert (result.evaluate()["gain"] > -0.05).all()
    assert result.evaluate()["gain"].mean() > 0


# ---- fewer bytes -----------------------------------------------------------------------------------------------------

FEW = ct.LocalSGD(steps=2, lr=0.05, batch_size=None)


def test_once_nobody_changes_only_the_own_model_is_sent(world):
    d, k, n = 40, 4, 12
    fed, _ = world.planted(k, n, d=d, samples=90)
    task = world.linear(d)
    plain = ct.IFCA(clusters=k, local=FEW)
    saving = replace(plain, stop=EarlyStop(3))
    one, two = (ct.fit(a, fed, task, rounds=15, alone=False) for a in (plain, saving))
    for name, t in one.state.models.items():
        torch.testing.assert_close(t, two.state.models[name], rtol=1e-12, atol=1e-12)
    assert one.clusters.equals(two.clusters)
    down = two.history["bytes_down"].to_numpy()
    assert (one.history["bytes_down"].to_numpy()[1:] == n * k * d * 8).all()
    switched = int(np.flatnonzero(down[1:] == n * d * 8)[0]) + 1  # the start too sends one model
    assert (down[1:switched] == n * k * d * 8).all()
    assert (down[switched:] == n * d * 8).all()
    assert down[1] == k * down[-1]
    assert switched == 1 + 4  # the start, one round to know the cluster, three to keep it


def test_all_models_are_sent_again_every_q_rounds(world):
    fed, _ = world.planted(2, 8, d=10, samples=40)
    plain = ct.IFCA(clusters=2, local=FEW, stop=EarlyStop(2))
    result = ct.fit(replace(plain, stop=EarlyStop(2, reopen_every=4)), fed, world.linear(10), rounds=16, alone=False)
    full = result.history["bytes_down"].to_numpy() == 8 * 2 * 10 * 8
    assert list(np.flatnonzero(full)[np.flatnonzero(full) > 4]) == [8, 12]
    same = ct.fit(plain, fed, world.linear(10), rounds=16, alone=False)
    torch.testing.assert_close(result.state.models, same.state.models, rtol=1e-12, atol=1e-12)


def test_with_partial_participation_clients_still_unknown_get_all_models(world):
    fed, _ = world.planted(2, 20, d=10, samples=40, seed=1)
    result = ct.fit(
        ct.IFCA(clusters=2, local=FEW, stop=EarlyStop(1)),
        fed,
        world.linear(10),
        rounds=40,
        cohort=5,
        seed=1,
        alone=False,
    )
    assert result.state.closed
    assert cluster_accuracy(result.clusters.to_numpy(), fed.clusters) == 1
    known = result.state.identity.numpy()
    assert (known[known >= 0] == result.clusters.to_numpy()[known >= 0]).all()
    assert result.history["bytes_down"].iloc[-1] < 5 * 2 * 10 * 8


@pytest.mark.parametrize("reopen", [None, 3])
def test_it_stops_broadcasting_although_replies_get_lost(world, reopen):
    """Sometimes nobody says which cluster it is in; who has not said so goes on getting all models."""
    fed, _ = world.planted(2, 4, d=4, samples=40)
    saving = ct.IFCA(clusters=2, local=FEW, stop=EarlyStop(1, reopen_every=reopen))
    for seed in range(4):
        lossy = [ct.exchange.Dropout(0.6)]
        state = ct.fit(saving, fed, world.linear(4), rounds=25, seed=seed, channels=lossy, alone=False).state
        assert (state.identity >= 0).any() or not state.closed


# ---- weight sharing --------------------------------------------------------------------------------------------------


def test_the_shared_part_is_averaged_over_all_and_sent_once(world):
    fed, task = world.planted(2, 10, d=3)[0], world.linear(3, hidden=2)
    ifca = ct.IFCA(clusters=2, local=FEW, start="random", shared=("0.",))
    start = ct.fit(ifca, fed, task, rounds=0, alone=False)
    result = ct.fit(ifca, fed, task, rounds=1, alone=False)
    local, cluster = [], start.clusters.to_numpy()
    assert len(set(cluster)) == 2
    for i, j in enumerate(cluster):  # plain autograd, client by client
        module = task.module(params=start.state.shared | {k: t[j] for k, t in start.state.models.items()})
        x, y = fed.train(i)
        for _ in range(2):
            module.zero_grad()
            torch.mean((module(x).squeeze(1) - y) ** 2).backward()
            with torch.no_grad():
                for p in module.parameters():
                    p -= 0.05 * p.grad
        local.append({k: p.detach() for k, p in module.named_parameters()})
    for name in ("0.weight", "0.bias"):
        torch.testing.assert_close(result.state.shared[name], torch.stack([m[name] for m in local]).mean(0))
    for name in ("1.weight", "1.bias"):
        for j in (0, 1):
            mine = torch.stack([m[name] for m, c in zip(local, cluster, strict=True) if c == j]).mean(0)
            torch.testing.assert_close(result.state.models[name][j], mine)
    phi, psi = 3 * 2 + 2, 2 + 1
    assert result.history["bytes_down"].tolist() == [10 * 8 * (phi + 2 * psi)]
    assert result.history["bytes_up"].tolist() == [10 * 8 * (phi + psi)]


def test_weight_sharing_by_gradients_steps_along_the_mean_over_all(world):
    fed, task = world.planted(2, 6, d=3)[0], world.linear(3, hidden=2)
    ifca = ct.IFCA(clusters=2, local=replace(FEW, steps=1), option="gradient", start="random", shared=("0.",))
    start, end = (ct.fit(ifca, fed, task, rounds=r, alone=False) for r in (0, 1))
    total = 0
    for i, j in enumerate(start.clusters.to_numpy()):
        module = task.module(params=start.state.shared | {k: t[j] for k, t in start.state.models.items()})
        x, y = fed.train(i)
        torch.mean((module(x).squeeze(1) - y) ** 2).backward()
        total = total + module[0].weight.grad
    torch.testing.assert_close(end.state.shared["0.weight"], start.state.shared["0.weight"] - 0.05 * total / 6)


def test_names_that_share_nothing_or_everything_are_refused(world):
    fed, task = world.planted(2, 4, d=3)[0], world.linear(3, hidden=2)
    for names, message in ((("9.",), "No parameter"), (("0.", "1."), "All parameters")):
        with pytest.raises(ct.errors.ConfigError, match=message):
            ct.fit(ct.IFCA(clusters=2, shared=names), fed, task, rounds=1)


@pytest.mark.parametrize("shared", [["1"], "1.", ("1.weight", "1.bias"), iter(["1."])])
def test_shared_parts_are_named_by_any_sequence_of_whole_names(world, shared):
    fed = world.planted(2, 4, d=3)[0]
    linear = torch.nn.Linear
    deep = ct.Task(lambda: torch.nn.Sequential(*[linear(3, 3) for _ in range(11)], linear(3, 1)), loss="mse")
    state = ct.fit(ct.IFCA(clusters=2, local=FEW, shared=shared), fed, deep, rounds=0, alone=False).state
    assert list(state.shared) == ["1.weight", "1.bias"]
    assert "10.weight" in state.models
    with pytest.raises(ct.errors.ConfigError, match="names of parameters"):
        ct.IFCA(clusters=2, shared=[1])


@pytest.mark.parametrize("aggregate", [ct.robust.Mean(), ct.robust.Median()])
def test_a_start_with_resampling_sees_the_first_part_of_the_data_only(world, aggregate):
    """T = 3: the start may use the first of three pairs of parts; what is in the others does not matter."""
    fed, _ = world.planted(2, 8, samples=48, d=3)
    ifca = ct.IFCA(clusters=2, local=ct.LocalSGD(steps=5, lr=0.05, batch_size=None), resample=3, aggregate=aggregate)
    within = np.arange(len(fed.y)) - np.repeat(fed.offsets[:-1], fed.n_samples)
    first = torch.from_numpy(within < np.repeat(fed.n_train, fed.n_samples) // 3)
    models = []
    for spoilt in (~first, first):
        other = ct.Federation(**{**vars(fed), "y": torch.where(spoilt, 50 - fed.y, fed.y)})
        models.append(ct.fit(ifca, other, world.linear(3), rounds=1, alone=False).state.models["weight"])
    plain = ct.fit(ifca, fed, world.linear(3), rounds=1, alone=False).state.models["weight"]
    assert torch.equal(plain, models[0])
    assert not torch.allclose(plain, models[1], atol=1.0)


def test_doubtful_starts_are_judged_by_the_same_clients(world):
    """Two groupings of these four: four trial rounds each, then one question about both. Sums over other clients, where
    replies get lost, would not be comparable."""
    counted = world.Count()
    fed = world.quadratics([[0], [1], [100], [101]])
    ct.fit(ct.IFCA(clusters=2, local=STEP), fed, world.linear(1), rounds=1, channels=[counted], alone=False)
    assert counted.asks == [4] * (1 + 2 * 4 + 1)
