"""Robust aggregators: exact values where all of them differ, invariances, and who breaks down.

Long, as every rule stands in every list."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import coterie as ct
from coterie.aggregation import (
    AGGREGATORS,
    Bucketing,
    CentredClipping,
    GeometricMedian,
    Krum,
    Mean,
    Median,
    MultiKrum,
    NearestNeighbourMixing,
    TrimmedMean,
    with_aggregate,
)
from coterie.base import randomness
from coterie.errors import ConfigError
from coterie.exchange.messages import MeanBy

KEY = randomness.base_key(3)
POINTS = torch.tensor([[0.0], [0.5], [1.0], [7.0], [9.0], [12.0], [100.0]], dtype=torch.float64)
RULES = {
    "mean": Mean(),
    "median": Median(),
    "trimmed_mean": TrimmedMean(2),
    "krum": Krum(2),
    "multi_krum": MultiKrum(2),
    "geometric_median": GeometricMedian(),
    "centred_clipping": CentredClipping(4.0),
    "bucketing": Bucketing(2, Median()),
    "nearest_neighbour_mixing": NearestNeighbourMixing(2),
}


def test_registry_is_complete():
    assert {name: type(rule) for name, rule in RULES.items()} == AGGREGATORS


def test_values_by_hand():
    """Seven numbers on which every rule says something else."""
    expected = {
        "mean": 129.5 / 7,
        "median": 7.0,
        "trimmed_mean": 17 / 3,  # 1, 7, 9
        "krum": 1.0,  # squared distances to its 3 nearest: 0.25 + 1 + 36, the least of all
        "multi_krum": 3.5,  # without 12 and 100
        "geometric_median": 7.0,  # in one dimension, a median
        "nearest_neighbour_mixing": 5.9,  # means of five: 3.5 at 0, 0.5, 1; 5.9 at 7, 9, 12; 25.8 at 100
    }
    for name, value in expected.items():
        assert float(RULES[name](POINTS)) == pytest.approx(value, abs=1e-3), name
    found = [
        round(float(rule(POINTS)), 6) for name, rule in RULES.items() if name not in ("geometric_median", "bucketing")
    ]
    assert len(set(found)) == len(found)


def test_krum_and_multi_krum_against_their_definition():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(11, 4)) + 3 * (np.arange(11) < 3)[:, None]
    scores = []
    for i in range(11):
        others = sorted(float(((z[i] - z[j]) ** 2).sum()) for j in range(11) if j != i)
        scores.append(sum(others[: 11 - 3 - 2]))
    order = np.argsort(scores)
    t = torch.from_numpy(z)
    np.testing.assert_array_equal(Krum(3)(t), z[order[0]])
    np.testing.assert_allclose(MultiKrum(3, keep=4)(t), z[order[:4]].mean(0))
    np.testing.assert_allclose(MultiKrum(3, keep=1)(t), z[order[0]])


def test_geometric_median_minimises_the_sum_of_distances():
    z = torch.from_numpy(np.random.default_rng(1).normal(size=(9, 3))) * torch.tensor([1.0, 5.0, 0.2])
    middle = GeometricMedian(iterations=500)(z)
    directions = (z - middle) / (z - middle).norm(dim=1, keepdim=True)
    assert float(directions.sum(0).norm()) < 1e-6  # the gradient
    assert float((middle - z.mean(0)).norm()) > 0.05
    collinear = torch.tensor([[0.0], [1.0], [10.0]], dtype=torch.float64)
    assert float(GeometricMedian(iterations=200)(collinear)) == pytest.approx(1.0, abs=1e-4)


def test_centred_clipping_against_its_definition():
    z = np.random.default_rng(2).normal(size=(8, 5)) + 2
    for start, begin in ((None, np.zeros(5)), (np.ones(5), np.ones(5))):
        v = begin
        for _ in range(3):
            d = np.linalg.norm(z - v, axis=1, keepdims=True)
            v = v + ((z - v) * np.minimum(1, 1.5 / d)).mean(0)
        got = CentredClipping(1.5)(torch.from_numpy(z), start=None if start is None else torch.from_numpy(start))
        np.testing.assert_allclose(got, v)
    wide = CentredClipping(1e6, iterations=1, start="median")(torch.from_numpy(z))
    np.testing.assert_allclose(wide, z.mean(0))


def test_bucketing_averages_buckets_of_a_random_order():
    z = torch.arange(7, dtype=torch.float64).unsqueeze(1) ** 2
    order = randomness.permutation(randomness.fold(KEY, "bucketing"), torch.ones(7))
    buckets = torch.stack([z[order[i : i + 3]].mean(0) for i in (0, 3, 6)])
    torch.testing.assert_close(Bucketing(3, Median())(z, key=KEY), Median()(buckets))
    torch.testing.assert_close(Bucketing(3, Mean())(z, key=KEY), z.mean(0))
    weights = torch.arange(1.0, 8.0)
    torch.testing.assert_close(Bucketing(3, Mean())(z, weights, key=KEY), Mean()(z, weights))
    assert float(Bucketing(1, Median())(z, key=KEY)) == 9.0


def test_nearest_neighbour_mixing_by_hand():
    """Among 0, 1, 2 and 10, three at a time: means 1, 1, 1 and 13/3; equal vectors count themselves first."""
    z = torch.tensor([[0.0], [1.0], [2.0], [10.0]], dtype=torch.float64)
    assert float(NearestNeighbourMixing(1, Mean())(z)) == pytest.approx((3 + 13 / 3) / 4)
    assert float(NearestNeighbourMixing(1)(z)) == pytest.approx(1.0)
    assert float(NearestNeighbourMixing(0, Krum(0))(z)) == pytest.approx(13 / 4)
    plane = np.array([[0.0, 0], [0, 0], [0, 0], [3, 4], [3, 4]])
    np.testing.assert_allclose(NearestNeighbourMixing(2, Mean())(plane), (0 + 2 * np.array([2, 8 / 3])) / 5)
    with pytest.raises(
        ConfigError, match=r"NearestNeighbourMixing needs 2 \* n_corrupted < clients; got n_corrupted=2"
    ):
        NearestNeighbourMixing(2)(z)


@pytest.mark.parametrize("name", RULES)
def test_a_tree_is_one_long_vector(name):
    z = torch.from_numpy(np.random.default_rng(4).normal(size=(9, 6))).float()
    tree = {"a": z[:, :2].reshape(9, 1, 2), "b": {"c": z[:, 2:]}}
    one, many = RULES[name](z, key=KEY), RULES[name](tree, key=KEY)
    assert many["a"].shape == (1, 2)
    assert many["a"].dtype == torch.float32
    torch.testing.assert_close(torch.cat([many["a"].flatten(), many["b"]["c"]]), one)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(7, 14), dim=st.integers(1, 4))
def test_order_and_position_do_not_matter(seed, n, dim):
    rng = np.random.default_rng(seed)
    z, shift = torch.from_numpy(rng.normal(size=(n, dim))), torch.from_numpy(rng.normal(size=dim) * 5)
    order = torch.from_numpy(rng.permutation(n))
    for name, rule in RULES.items():
        if name == "bucketing":  # its order is random on purpose
            continue
        base = rule(z, start=torch.zeros(dim))
        far = 1e-3 if name == "geometric_median" else 1e-9  # found step by step
        torch.testing.assert_close(rule(z[order] + shift, start=shift), base + shift, atol=far, rtol=0, msg=name)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), size=st.floats(1e2, 1e8), sign=st.sampled_from([-1.0, 1.0]))
def test_two_of_nine_liars_break_the_mean_and_nothing_else(seed, size, sign):
    rng = np.random.default_rng(seed)
    honest = rng.normal(size=(7, 3))
    z = torch.from_numpy(np.concatenate([honest, sign * size * (1 + rng.random((2, 3)))]))
    center, spread = torch.from_numpy(honest.mean(0)), np.abs(honest).max() * 2
    assert float((Mean()(z) - center).norm()) > size / 10
    for name in ("median", "trimmed_mean", "krum", "multi_krum", "geometric_median", "nearest_neighbour_mixing"):
        assert float((RULES[name](z) - center).abs().max()) < spread, name
    clipped = CentredClipping(1.0, start="median")(z)
    assert float((clipped - center).abs().max()) < spread + 3 * 2 / 9
    bucketed = Bucketing(2, TrimmedMean(2))(z, key=KEY)
    assert float((bucketed - center).abs().max()) < spread


def test_only_the_mean_listens_to_weights():
    weights = torch.tensor([1.0, 1, 1, 1, 1, 1, 1000])
    assert float(Mean()(POINTS, weights)) > 95
    for name, rule in RULES.items():
        if name != "mean":
            assert torch.equal(rule(POINTS, weights, key=KEY), rule(POINTS, key=KEY)), name


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: TrimmedMean(4)(torch.zeros(8, 1)),
            r"TrimmedMean needs 2 \* n_corrupted < clients; got n_corrupted=4, cl",
        ),
        (lambda: Krum(3)(torch.zeros(8, 1)), r"Krum needs 2 \* n_corrupted \+ 2 < clients"),
        (lambda: MultiKrum(1, keep=8)(torch.zeros(8, 1)), "keep"),
        (lambda: Bucketing()(torch.zeros(8, 1)), "key"),
        (lambda: TrimmedMean(-1), "whole number"),
        (lambda: CentredClipping(0.0), "radius"),
        (lambda: CentredClipping(1.0, start="mean"), "start"),
        (lambda: GeometricMedian(eps=0.0), "eps"),
        (lambda: Mean()(torch.zeros(3, 1), torch.zeros(3)), "weight"),
        (lambda: Median()(torch.zeros(0, 1)), "client"),
    ],
)
def test_errors_say_the_rule(call, words):
    with pytest.raises(ConfigError, match=words):
        call()


# ---- in an algorithm -------------------------------------------------------------------------------------------------


def clients(count=7, seed=0):
    rng = np.random.default_rng(seed)
    data = {}
    for i in range(count):
        x = rng.normal(size=(12 + i, 3))
        data[f"c{i}"] = (x, x @ np.array([1.0, -2.0, 0.5]) + 0.3 * i + 0.1 * rng.normal(size=12 + i))
    return ct.Federation.from_arrays(data)


@pytest.mark.parametrize("name", [n for n in RULES if n != "mean"])
def test_fedavg_aggregates_the_local_models_it_would_average(name):
    fed, local = clients(), ct.LocalSGD(steps=3, lr=0.1, batch_size=None)
    start = ct.fit(ct.FedAvg(local), fed, rounds=0, seed=1).state.model
    alone = ct.fit(ct.Local(local), fed, rounds=1, seed=1)
    models = {k: torch.stack([dict(alone.model(c).named_parameters())[k].detach() for c in fed.clients]) for k in start}
    got = ct.fit(ct.FedAvg(local, aggregate=RULES[name]), fed, rounds=1, seed=1).state.model
    key = ct.exchange.Cohort(np.arange(7), 0, 1).key("aggregate")
    expected = RULES[name](models, key=key, start=start)
    for k in start:
        torch.testing.assert_close(got[k], expected[k])
    plain = ct.fit(ct.FedAvg(local), fed, rounds=1, seed=1).state.model
    if name != "centred_clipping":  # whose radius is wide here
        assert any(not torch.allclose(plain[k], got[k], atol=1e-4) for k in start)


def test_a_robust_ask_is_individual_and_a_mean_is_not():
    state = ct.fit(ct.FedAvg(), clients(), rounds=0).state
    cohort = ct.exchange.Cohort(np.arange(7), 0, 0)
    assert next(ct.FedAvg(aggregate=Median()).round(state, cohort)).reduce is None
    additive = next(ct.FedAvg().round(state, cohort))
    assert additive.reduce == MeanBy()


@pytest.mark.parametrize("name", AGGREGATORS)
def test_arrays_and_lists_are_taken_as_they_are_and_left_alone(name):
    rule, table = RULES[name], np.array([[5.0, 1], [1, 2], [2, 9], [8, 0], [4, 4], [3, 7], [6, 6]])
    before, start = table.copy(), np.array([1.0, 2.0])
    want = rule(torch.tensor(table), torch.arange(1.0, 8), key=KEY, start=torch.tensor(start)).numpy()
    for rows in (table, table.tolist()):
        got = rule(rows, list(range(1, 8)), key=KEY, start=start)
        assert isinstance(got, np.ndarray)
        np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(rule({"w": table}, np.arange(1, 8), key=KEY, start={"w": start})["w"], want)
    np.testing.assert_array_equal(table, before)
    with pytest.raises(ConfigError, match="one row of numbers per client"):
        rule([[1.0, 2.0], [3.0]], key=KEY)


def test_numpy_counts_are_counts():
    assert TrimmedMean(np.int64(2)) == TrimmedMean(2)
    for wrong in (True, 2.0, np.float64(2), np.bool_(True)):
        with pytest.raises(ConfigError, match="whole number ≥ 0"):
            TrimmedMean(wrong)


def test_an_algorithm_of_sums_says_so():
    assert with_aggregate(ct.FedAvg(), Krum(1)).aggregate == Krum(1)
    assert with_aggregate(ct.FineTuned(), Krum(1)).base.aggregate == Krum(1)
    assert with_aggregate(ct.Ditto(), Krum(1)).aggregate == Krum(1)
    with pytest.raises(ConfigError, match="Oracle only offers additive asks"):
        with_aggregate(ct.Oracle(), Krum(1))


@pytest.mark.parametrize("algorithm", [ct.FedAvg, ct.Ditto, ct.KNNPer])
def test_wherever_models_are_averaged_a_robust_rule_takes_the_mean_s_place(algorithm):
    """Two of seven clients send a hundred times the model: the median stays near the honest mean, the mean does not."""
    fed = ct.datasets.digits(transform=None, clusters=1, clients=7, samples=40)
    local = ct.LocalSGD(steps=3, lr=0.1)
    liars = [ct.exchange.attacks.LargeGradient(fed.clients[:2].tolist(), factor=100.0)]
    task = ct.Task(ct.models.mlp(64, 8, 10))

    def model(channels=(), **options):
        rule = algorithm(local=local, **options)
        return ct.fit(rule, fed, task, rounds=1, seed=1, channels=channels, alone=False).state.model

    honest, median, mean = model(), model(liars, aggregate=Median()), model(liars)
    far = {
        name: max(float((m[k] - honest[k]).abs().max()) for k in honest)
        for name, m in {"median": median, "mean": mean}.items()
    }
    assert far["median"] < 0.1 * far["mean"], far


@pytest.fixture
def world():
    """Client i minimises the distance to its own point."""

    def quadratics(points):
        data = {i: (np.eye(len(c)), np.array(c)) for i, c in enumerate(points)}
        return ct.Federation.from_arrays(data, kind="regression", test_fraction=0.0, dtype="float64")

    return quadratics


@pytest.mark.parametrize("rule", [ct.CFL(ct.LocalSGD(steps=3, lr=0.1)), ct.MyopicClustering(clusters=1)])
def test_in_clusters_a_robust_rule_takes_the_mean_s_place_too(rule):
    fed = ct.datasets.digits(transform=None, clusters=1, clients=7, samples=40)
    liars = [ct.exchange.attacks.LargeGradient(fed.clients[:2].tolist(), factor=100.0)]

    def model(channels=(), aggregate=None):
        algorithm = rule if aggregate is None else with_aggregate(rule, aggregate)
        run = ct.fit(algorithm, fed, rounds=1, seed=1, channels=channels, alone=False)
        return torch.cat([p.detach().flatten() for p in run.model(fed.clients[6]).parameters()])

    honest, median, mean = model(), model(liars, Median()), model(liars)
    assert (median - honest).norm() < 0.1 * (mean - honest).norm()
    with pytest.raises(ConfigError, match="clients=7"):
        model(aggregate=TrimmedMean(4))


def test_a_cluster_too_small_for_a_robust_rule_stays_where_it_is(world):
    """Two clients at 10 are split from five at 0: too few for a trimmed mean of two."""
    fed = world([[0.0, 0], [0, 0], [0, 0], [0, 0], [0, 0], [9, 9], [9, 9]])
    task = ct.Task(lambda: torch.nn.Linear(2, 1, bias=False), loss="mse")
    local = ct.LocalSGD(steps=5, lr=0.2, batch_size=None)
    cfl = ct.CFL(local, quiet=100, loud=1.0, first=0, most=2, aggregate=TrimmedMean(2))
    one, two = (ct.fit(cfl, fed, task, rounds=r, alone=False) for r in (1, 5))
    assert two.clusters.nunique() == 2
    assert torch.equal(one.model(6).weight, two.model(6).weight)
    assert two.model(0).weight.abs().max() < 0.1


class Lost(ct.exchange.channels.base.Channel):
    """The first `count` clients do not answer in the second round."""

    def __init__(self, count):
        self.count = count

    def ask(self, ask, where):
        return ask.only(ask.clients >= self.count) if where.round == 1 else ask


@pytest.mark.parametrize("rule", [TrimmedMean(2), Krum(1), MultiKrum(1), Bucketing(1, TrimmedMean(2))])
def test_too_few_answers_leave_the_model_for_a_round_but_too_small_a_cohort_is_an_error(rule):
    fed = ct.datasets.digits(transform=None, clusters=1, clients=7, samples=40)
    average = ct.FedAvg(ct.LocalSGD(steps=3, lr=0.1), aggregate=rule)
    seen = []

    def run(**options):
        keep = [lambda row, state: seen.append(next(iter(state.model.values())).clone())]
        return ct.fit(average, fed, rounds=3, alone=False, callbacks=keep, **options)

    run(channels=[Lost(3)])
    assert torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[1], seen[2])
    for options in ({}, {"channels": [ct.exchange.Dropout(0.5)]}):
        with pytest.raises(ConfigError, match="clients=4"):
            run(cohort=4, **options)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e200])
@pytest.mark.parametrize(
    "rule",
    [
        Krum(1),
        MultiKrum(1),
        GeometricMedian(),
        CentredClipping(1.0),
        Bucketing(2, Krum(0)),
        Median(),
        TrimmedMean(1),
        Mean(),
    ],
)
def test_a_row_that_is_no_number_is_left_out(rule: Any, bad: float) -> None:
    """As if the liar had not sent anything; a finite row too long to measure is left out where distances are needed."""
    rows = np.random.default_rng(0).normal(size=(9, 5))
    liar = rows[:1].copy()
    liar[0, 2] = bad
    spoilt = np.concatenate([rows[:4], liar, rows[4:]])
    if bad == 1e200 and isinstance(rule, Median | TrimmedMean | Mean | Bucketing):
        return
    key = torch.tensor(5)
    weights = torch.arange(1.0, 11.0)
    fewer = torch.cat([weights[:4], weights[5:]])
    np.testing.assert_array_equal(rule(spoilt, weights, key=key), rule(rows, fewer, key=key))
    with pytest.raises(ct.errors.DataError, match="all 2 rows hold NaN"):
        rule(np.full((2, 3), np.nan), key=key)


def test_krum_counts_exactly_so_many_neighbours():
    """N − n_corrupted − 2 of them: over forty sets of points one more or one less would often choose another client."""
    chosen = {more: [] for more in (-1, 0, 1)}
    for seed in range(40):
        points = torch.from_numpy(np.random.default_rng(seed).normal(size=(8, 2)))
        square = torch.cdist(points, points).square().sort(1).values
        for more, found in chosen.items():
            found.append(points[square[:, 1 : 8 - 2 - 2 + 1 + more].sum(1).argmin()])
        torch.testing.assert_close(Krum(2)(points), chosen[0][-1])
    for more in (-1, 1):
        assert sum(not torch.equal(a, b) for a, b in zip(chosen[0], chosen[more], strict=True)) >= 3


def test_the_median_of_an_even_number_is_between_the_two_in_the_middle():
    z = torch.tensor([[1.0, 4.0], [10.0, 3.0], [2.0, 2.0], [3.0, 1.0]])
    torch.testing.assert_close(Median()(z), torch.tensor([2.5, 2.5]))


def test_buckets_listen_to_weights_for_the_mean_alone():
    z, weights, key = torch.arange(12.0).reshape(6, 2), torch.tensor([1.0, 9, 1, 9, 1, 1]), randomness.base_key(0)
    assert torch.equal(Bucketing(2)(z, weights, key=key), Bucketing(2)(z, key=key))
    torch.testing.assert_close(Bucketing(2, Mean())(z, weights, key=key), Mean()(z, weights))
