"""Private discovery of tokens: what one user can change, the threshold, the receipt, and the table over the tokens."""

import numpy as np
import pytest

import coterie as ct
from coterie.errors import DataError
from coterie.privacy import BudgetSpent, ExactNoise, Released, SetUnion, SimulationNoise

EXACT = ct.Privacy(1, 1e-6, clip=1.0)


def texts(users, words=300, own=40, seed=0):
    rng = np.random.default_rng(seed)
    share = 1 / (np.arange(words) + 20.0)
    return [[f"w{i}" for i in rng.choice(words, own, p=share / share.sum())] for _ in range(users)]


def test_common_tokens_are_found_and_those_of_one_user_are_not():
    data = texts(4000)
    data[0] = ["secret", "another secret"]
    found = ct.histograms.discover_tokens(data, EXACT, most=20)
    assert found.receipt.valid, found.receipt.reasons
    assert 0.999 < found.receipt.epsilon <= 1
    assert len(found.tokens.value) > 200
    assert "secret" not in found.tokens.value
    assert type(found.receipt).from_json(found.receipt.to_json()) == found.receipt
    assert found.receipt.releases[0]["failure"] == 5e-7
    table = ct.histograms.count_tokens(data, found.tokens.value)
    assert table.shape == (4000, len(found.tokens.value))
    assert table[[1]].sum() == sum(word in set(found.tokens.value) for word in data[1])
    assert not ct.histograms.discover_tokens(data, ct.Privacy(1, 1e-6, 1.0, noise="simulation")).receipt.valid


def test_the_threshold_is_exact():
    """A user alone with t names: none of them passes but with the promised probability, here .02 for the worst t."""
    union = SetUnion("names", 4, 100, 2.0, 0.02)
    weights = 1 / np.sqrt(np.arange(1, 5))
    rng = np.random.default_rng(0)
    passes = []
    for t in range(1, 5):
        noisy = weights[t - 1] + union.sigma * rng.normal(size=(200_000, t))
        passes.append((noisy >= union.threshold).any(axis=1).mean())
    error = np.sqrt(0.02 / 200_000)
    assert max(passes) < 0.02 + 4 * error
    assert max(passes) > 0.02 - 4 * error


@pytest.mark.parametrize("adjacency", ["zero-out", "replace"])
def test_one_user_moves_the_weights_by_at_most_the_sensitivity(adjacency):
    class Clear(SimulationNoise):
        def gaussian(self, total, sigma):
            self.__dict__["seen"] = total
            return total

    def weights(users):
        noise = Clear(0)
        SetUnion("names", 3, 10, 5.0, 1e-6, adjacency)(users, noise)
        return np.pad(noise.seen, (0, 8 - len(noise.seen)))

    others = [["a", "b", "c", "d", "e", "f", "g", "h"][i:] for i in range(6)] + [list("abc"), list("def"), list("gh")]
    union = SetUnion("names", 3, 10, 5.0, 1e-6, adjacency)
    for mine in (["a"], ["a", "b"], ["a", "b", "c", "d"], []):
        moved = np.linalg.norm(weights([*others, mine]) - weights([*others, ["f", "g", "h"]]))
        alone = np.linalg.norm(weights([*others, mine]) - weights(others))
        assert alone <= 2**30 * (1 + 1e-12)
        assert moved <= 2**30 * np.sqrt(2) * (1 + 1e-12)
    assert union.lattice_sensitivity == 2**30 * (1 if adjacency == "zero-out" else np.sqrt(2))


def test_one_ledger_pays_for_the_tokens_and_the_fit(tmp_path):
    data = texts(3000)
    budget = ct.Privacy(1, 1e-6, clip=1.0, ledger=tmp_path / "ledger.sqlite", users="writers", total_epsilon=3)
    found = ct.histograms.discover_tokens(data, budget, most=20)
    table = ct.histograms.count_tokens(data, found.tokens.value)
    receipt = ct.HistogramMixture(2, privacy=budget, rounds=2).fit(table).receipt_
    assert receipt.valid
    assert 1 < receipt.cumulative["epsilon"] < 3
    with pytest.raises(BudgetSpent):  # the second threshold takes the rest of δ
        ct.histograms.discover_tokens(data, budget)


def test_failures_add_to_delta():
    union = SetUnion("names", 5, 100, 4.0, 1e-4)
    costs = ct.privacy.compose([union.event(), union.event()])
    plain = ct.privacy.compose([ct.privacy.JointSum("sum", 3, 1.0, 4.0).event()] * 2)
    assert costs.delta(1.0) == pytest.approx(plain.delta(1.0) + 2e-4, rel=1e-3)
    assert costs.epsilon(1e-4) == np.inf
    assert costs.epsilon(1e-3) == pytest.approx(plain.epsilon(8e-4), rel=1e-3)


def test_refusals():
    with pytest.raises(DataError, match="lists of words"):
        ct.histograms.discover_tokens(["plain text"], EXACT)
    released = SetUnion("names", 5, 3, 4.0, 1e-4)([["a"], ["b"], ["a"]], ExactNoise())
    assert isinstance(released, Released)
    assert not released.clean  # not booked
