"""Groups on worlds whose answer is known."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pytest

from coterie.comparison.exact import coalitions
from coterie.errors import ConfigError, DataError
from coterie.evidence.coalitions import Settings, find

MU, SIGMA2 = 10.0, 1.0


def mean_estimation(sizes, rows=12):
    """Donahue and Kleinberg (2021): clients estimate their means; expected losses are exact, so rows do not vary."""
    n = np.asarray(sizes, float)

    def train(block):
        total = n[list(block)].sum()
        out = []
        for j in range(len(n)):
            if j not in block:
                out.append(None)
                continue
            others = sum(n[i] ** 2 for i in block if i != j)
            loss = MU / total + SIGMA2 * (others + (total - n[j]) ** 2) / total**2
            out.append(np.full(rows, loss))
        return out

    alone = [np.full(rows, MU / k) for k in n]
    return train, alone


def regression(slopes, n=40, seed=0, noise=1.0):
    rng = np.random.default_rng(seed)
    X = [rng.normal(size=(n, slopes.shape[1])) for _ in slopes]
    y = [x @ w + noise * rng.normal(size=n) for x, w in zip(X, slopes, strict=True)]
    return np.concatenate(X), np.concatenate(y), np.repeat([f"c{i:03d}" for i in range(len(slopes))], n)


@pytest.mark.parametrize(("ratio", "together"), [(0.5, True), (0.9, True), (1.1, False), (2.0, False)])
@pytest.mark.parametrize("clients", [2, 6, 12])
def test_equal_clients_stay_together_below_the_threshold_and_part_above(ratio, together, clients):
    """M equal clients gain (M − 1)/M · (μ/n − σ²) each: together exactly when n < μ/σ²."""
    n = ratio * MU / SIGMA2
    train, alone = mean_estimation([n] * clients)
    gradients = np.random.default_rng(0).normal(size=(clients, 4))
    found = find(train, alone, gradients, range(clients), Settings(worth=0.01 * MU / n), brings=False)
    assert found.together is together
    assert bool(found.groups) is together
    assert found.stable is together
    if together:
        expected = (clients - 1) / clients * (MU / n - SIGMA2)
        np.testing.assert_allclose(found.table["gets"], expected)
        assert found.words().startswith("Everyone gains; stay together.")
    else:
        assert found.words().startswith("Nobody gains enough: train alone.")


def test_five_against_five_opposites_are_two_stable_fives():
    w = np.random.default_rng(3).normal(size=5)
    found = coalitions(*regression(np.outer([1] * 5 + [-1] * 5, w)))
    assert [set(g) for g in found.groups] == [{f"c{i:03d}" for i in five} for five in (range(5), range(5, 10))]
    assert found.stable
    assert found.support >= 0.8
    assert "They belong in 2 groups" in found.words()
    assert found.table["verdict"].tolist() == ["stays"] * 5 + ["moves"] * 5


def test_all_but_the_odd_one_stay():
    w = np.random.default_rng(3).normal(size=5)
    found = coalitions(*regression(np.outer([1] * 9 + [-1], w)))
    assert found.lone == ["c009"]
    assert found.words().startswith("All but c009 stay; c009 is better off alone.")


def test_unrelated_clients_train_alone():
    found = coalitions(*regression(np.random.default_rng(1).normal(size=(8, 5))))
    assert found.groups == ()
    assert not found.stable
    assert found.words().startswith("Nobody gains enough")


@pytest.mark.slow
def test_folds_of_equal_clients_do_not_split():
    """The tree's gradients saw the judging rows; four standard errors keep equals together."""
    whole = sum(coalitions(*regression(np.ones((8, 5)), n=30, seed=s), brings=False).together for s in range(12))
    assert whole >= 11


def noisy(true_gain, clients=100, rows=30, seed=0):
    """Row gains of all together with these means and unit spread; every other coalition is as good as alone."""
    rng = np.random.default_rng(seed)
    gain = true_gain + rng.normal(size=(clients, rows))
    alone = list(np.full((clients, rows), 5.0))

    def train(block):
        whole = len(block) > clients // 2
        return [alone[i] - gain[i] if whole and i in block else alone[i] for i in range(clients)]

    return train, alone, rng.normal(size=(clients, 5)), range(clients)


@pytest.mark.slow
def test_of_a_hundred_equals_nobody_is_sent_away():
    kept = [find(*noisy(0.1, seed=s), Settings(worth=0.05), brings=False).together for s in range(10)]
    assert sum(kept) >= 9


@pytest.mark.slow
def test_a_group_that_loses_is_never_stable():
    found = find(*noisy(-0.15, clients=40), Settings(worth=0.05), brings=False)
    assert not found.together
    assert found.mean_gain > 0 or not found.stable


def test_the_order_of_the_clients_does_not_matter():
    X, y, clients = regression(np.outer([1] * 4 + [-1] * 4, np.ones(4)), n=30)
    owner = {c: clients == c for c in np.unique(clients)}
    names = list(owner)
    from coterie.comparison.exact.ridge_coalitions import PooledRidge
    from coterie.data.coded_table import make_table

    model = PooledRidge(make_table(X, y, clients, "regression", None), 5, 0)
    alone = [model.losses(frozenset([i]))[i] for i in range(8)]
    one = find(model.losses, alone, model.gradients(), names)
    order = np.random.default_rng(1).permutation(8)

    def turned(block):
        parts = model.losses(frozenset(order[i] for i in block))
        return [parts[i] for i in order]

    other = find(turned, [alone[i] for i in order], model.gradients()[order], [names[i] for i in order])
    assert [set(g) for g in other.groups] == [set(g) for g in one.groups]
    assert list(other.table.index) == [names[i] for i in order]
    assert other.support == one.support
    np.testing.assert_allclose(other.table.loc[names, "gets"], one.table["gets"])


def test_every_coalition_is_trained_once_and_counted():
    train, alone, gradients, clients = noisy(0.05, clients=9)
    calls, notes = [], []

    def counted(block):
        calls.append(block)
        return train(block)

    found = find(
        counted, alone, gradients, clients, Settings(worth=0.05), brings=False, note=lambda *at: notes.append(at)
    )
    assert len(calls) == len(set(calls)) == found.tried == len(notes)
    assert f"{found.tried} groups were trained" in found.words()
    assert found.tried <= found.planned
    assert {planned for _, planned in notes} == {found.planned}


def test_a_client_without_rows_stays_unjudged():
    train, alone = mean_estimation([3.0] * 4)

    def without(block):
        parts = train(block)
        return [np.zeros(0), *parts[1:]]

    found = find(without, [np.zeros(0), *alone[1:]], np.random.default_rng(0).normal(size=(4, 3)), "abcd")
    assert found.together
    assert np.isnan(found.table.loc["a", "gets"])
    assert found.table.loc["a", "sure"] == "open"


def test_too_few_rows_are_said():
    found = coalitions(*regression(0.3 * np.random.default_rng(5).normal(size=(6, 3)), n=8, seed=2))
    assert (found.table["sure"] == "open").all()
    assert found.words().startswith("Too few rows to tell; best guess")


def test_the_picture():
    found = coalitions(*regression(np.outer([1] * 3 + [-1] * 3, np.ones(3)), n=20))
    figure, ax = plt.subplots()
    assert found.plot(ax) is ax
    assert "brings" in ax.get_xlabel()
    plt.close(figure)


def test_bad_input_is_refused():
    train, alone = mean_estimation([1.0, 1.0])
    with pytest.raises(DataError, match="two clients"):
        find(train, alone[:1], np.ones((1, 2)), ["a"])
    with pytest.raises(ConfigError, match="budget"):
        find(train, alone, np.ones((2, 2)), ["a", "b"], Settings(budget=0))
    with pytest.raises(ConfigError, match="at least 3"):
        coalitions(*regression(np.ones((3, 2))), folds=2)
