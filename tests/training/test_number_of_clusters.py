"""The number of clusters is found where it is known, restarts are chosen by training loss, and both show their evidence."""

import numpy as np
import pytest
from torch import nn

import coterie as ct
from coterie.learning.metrics import cluster_accuracy

LOCAL = ct.LocalSGD(steps=5, lr=0.05, batch_size=None)
TASK = ct.Task(lambda: nn.Linear(4, 1, bias=False), loss="mse")


def planted(clusters: int, seed: int = 0, clients: int = 24) -> ct.Federation:
    rng = np.random.default_rng([seed, clusters])
    theta = 2.5 * np.linalg.qr(rng.normal(size=(4, 4)))[0][:clusters]
    own = rng.permutation(np.arange(clients) % clusters)
    x = rng.normal(size=(clients, 24, 4))
    y = np.einsum("isd,id->is", x, theta[own]) + 0.5 * rng.normal(size=(clients, 24))
    data = {i: (x[i], y[i]) for i in range(clients)}
    return ct.Federation.from_arrays(data, clusters=dict(enumerate(own.tolist())), dtype="float64")


@pytest.mark.parametrize("clusters", [1, 2, 3])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_the_planted_number_is_chosen_and_the_table_says_why(clusters: int, seed: int) -> None:
    fed = planted(clusters, seed)
    choice = ct.choose_clusters(ct.IFCA(local=LOCAL), fed, TASK, candidates=(1, 2, 3, 4), rounds=15)
    assert choice.clusters == clusters
    table = choice.table
    assert list(table.index) == [1, 2, 3, 4]
    assert table["excess"].min() == 0
    assert table.loc[clusters, "excess"] <= max(2 * table.loc[clusters, "excess_error"], 0.01 * table["loss"].min())
    for fewer in range(1, clusters):  # too few clusters cost much more than the error of the comparison
        assert table.loc[fewer, "excess"] > 3 * table.loc[fewer, "excess_error"]
    assert choice.plot().get_xlabel() == "clusters"


def test_fit_chooses_when_no_number_is_given_and_keeps_the_evidence() -> None:
    fed = planted(2)
    result = ct.fit(ct.IFCA(local=LOCAL), fed, TASK, rounds=15, alone=False)
    assert result.about["clusters"] == 2
    assert [row["clusters"] for row in result.about["choice"]] == [1, 2, 3, 4, 5, 6]
    assert cluster_accuracy(result.clusters.to_numpy(), fed.clusters) == 1


def test_the_choice_never_sees_test_data() -> None:
    fed = planted(2)
    spoiled = ct.Federation(**{**vars(fed), "y": fed.y.clone()})
    within = np.arange(len(fed.y)) - np.repeat(fed.offsets[:-1], fed.n_samples)
    spoiled.y[within >= np.repeat(fed.n_train, fed.n_samples)] = 1e6
    one, two = (ct.choose_clusters(ct.IFCA(local=LOCAL), f, TASK, candidates=(1, 2), rounds=5) for f in (fed, spoiled))
    assert one.table.equals(two.table)


@pytest.mark.parametrize(
    "algorithm", [ct.FedAvg(), ct.FineTuned(), ct.IFCA(clusters=2), ct.FineTuned(base=ct.IFCA(clusters=2))]
)
def test_an_algorithm_without_a_number_to_choose_is_refused(algorithm: ct.exchange.Algorithm) -> None:
    with pytest.raises(ct.errors.ConfigError, match="clusters=None"):
        ct.choose_clusters(algorithm, planted(1), TASK)


def test_the_best_of_several_runs_has_the_smallest_training_loss() -> None:
    fed = planted(3, 3)
    plain = ct.IFCA(clusters=3, local=LOCAL, start="random")
    runs = [ct.fit(plain, fed, TASK, seed=s, rounds=15, alone=False) for s in range(4)]
    losses = [float(run.evaluation.train_losses().mean()) for run in runs]
    best = ct.best_of(4, plain, fed, TASK, rounds=15, alone=False)
    assert best.about["restarts"] == pytest.approx(losses)
    assert max(losses) > 1.5 * min(losses)  # the runs differ
    assert best.about["seed"] == int(np.argmin(losses))
    assert best.clusters.equals(runs[int(np.argmin(losses))].clusters)
    with pytest.raises(ct.errors.ConfigError, match="restarts must be a whole number ≥ 1"):
        ct.best_of(0, plain, fed, TASK)


def test_clients_of_a_single_row_hear_that_nothing_can_be_held_out() -> None:
    rng = np.random.default_rng(0)
    data = {i: (rng.normal(size=(1, 4)), rng.normal(size=1)) for i in range(5)}
    fed = ct.Federation.from_arrays(data, kind="regression", test_fraction=0.0)
    with pytest.raises(ct.errors.DataError, match="two training rows or more"):
        ct.fit(ct.IFCA(), fed, TASK, rounds=3, alone=False)


def test_when_the_largest_number_tried_wins_the_choice_says_so() -> None:
    fed = planted(3)
    narrow, wide = (
        ct.choose_clusters(ct.IFCA(local=LOCAL), fed, TASK, candidates=c, rounds=10) for c in ((1, 2), (1, 2, 3, 4))
    )
    assert narrow.clusters == 2
    assert "more may be better" in narrow.note
    assert wide.clusters == 3
    assert wide.note == ""


def test_trials_go_through_the_same_channels() -> None:
    asks = []

    class Count(ct.exchange.channels.base.Channel):
        def ask(self, ask, where):
            asks.append(ask)
            return ask

    ct.fit(ct.IFCA(local=LOCAL), planted(1, clients=6), TASK, rounds=2, channels=[Count()], alone=False)
    alone = len(asks)
    asks.clear()
    ct.fit(ct.IFCA(clusters=4, local=LOCAL), planted(1, clients=6), TASK, rounds=2, channels=[Count()], alone=False)
    assert alone > 6 * 2 + len(asks) - 2 >= 12  # six trials and the run


def test_the_best_of_a_grid_of_algorithms_is_chosen_by_training_loss() -> None:
    """The step size 50 diverges, the smallest one hardly moves."""
    fed = planted(2)
    grid = [ct.IFCA(clusters=2, local=ct.LocalSGD(steps=5, lr=lr, batch_size=None)) for lr in (50.0, 0.05, 1e-5)]
    best = ct.best_of(2, grid, fed, TASK, rounds=30, alone=False)
    losses = best.about["restarts"]
    assert len(losses) == 6
    assert np.isinf(losses[:2]).all()
    assert max(losses[2:4]) < min(losses[4:])
    assert "lr=0.05" in best.about["algorithm"]
    with pytest.raises(ct.errors.Diverged):
        ct.best_of(1, grid[:1], fed, TASK, rounds=30, alone=False)
    with pytest.raises(ct.errors.ConfigError, match="algorithm"):
        ct.best_of(1, [], fed, TASK)


def test_the_range_widens_while_the_best_number_is_near_its_end() -> None:
    """Eight groups in eight directions: six clusters are too few, and nine do not win either."""
    rng = np.random.default_rng(0)
    theta, own = 3 * np.linalg.qr(rng.normal(size=(8, 8)))[0], np.arange(32) % 8
    x = rng.normal(size=(32, 40, 8))
    y = np.einsum("isd,id->is", x, theta[own]) + 0.3 * rng.normal(size=(32, 40))
    fed = ct.Federation.from_arrays({i: (x[i], y[i]) for i in range(32)}, dtype="float64")
    task = ct.Task(lambda: nn.Linear(8, 1, bias=False), loss="mse")
    choice = ct.choose_clusters(ct.IFCA(local=LOCAL), fed, task, rounds=6)
    assert choice.clusters == 8
    assert max(choice.table.index) in (9, 12)
    assert choice.note == ""


def test_a_range_that_ends_at_its_limit_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.training.number_of_clusters._FIRST", 1)
    monkeypatch.setattr("coterie.training.number_of_clusters._MORE", 1)
    monkeypatch.setattr("coterie.training.number_of_clusters._MOST", 2)
    choice = ct.choose_clusters(ct.IFCA(local=LOCAL), planted(3), TASK, rounds=10)
    assert choice.clusters == 2
    assert choice.note.startswith("The largest number of clusters tried, 2, won; more may be better.")


@pytest.mark.parametrize("wrong", [(0, 1), (1, 2.5), (-1,)])
def test_candidates_are_whole_numbers(wrong: tuple[float, ...]) -> None:
    with pytest.raises(
        ct.errors.ConfigError, match=r"candidates? must be (a whole number ≥ 1|a list, each a whole number)"
    ):
        ct.choose_clusters(ct.IFCA(local=LOCAL), planted(1, clients=6), TASK, candidates=wrong, rounds=1)  # type: ignore[arg-type]
