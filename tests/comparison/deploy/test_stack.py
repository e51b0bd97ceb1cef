"""The weights of a stack: right where the truth is known, between candidates where both help, and never of a seen row."""

import numpy as np

from coterie.comparison.deploy.stack import Stack, learn_weights


def _two(n: int, m: int, seed: int, spread: tuple[float, float]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.normal(size=n)
    outputs = np.stack([y + s * rng.normal(size=n) for s in spread])[..., None]
    return outputs, y, rng.integers(m, size=n)


def test_independent_errors_get_inverse_variance_weights():
    outputs, y, owner = _two(4000, 5, 0, (1.0, 0.5))
    found = learn_weights(outputs, y, owner, 5, False, np.array([0.5, 0.5]), 0)
    assert abs(found.overall[1] - 0.8) < 0.04  # 1/0.25 of 1/1 + 1/0.25; the standard error is about 0.008
    np.testing.assert_allclose(found.by_client.sum(1), 1)
    assert (found.by_client >= 0).all()
    loss = ((found.unseen[:, 0] - y) ** 2).mean()
    assert loss < 0.22  # 0.2 at the best weights, 0.25 with the better candidate alone


def test_a_client_with_many_rows_gets_weights_of_its_own():
    outputs, y, owner = _two(6000, 2, 1, (1.0, 1.0))
    rng = np.random.default_rng(2)
    for client, good in ((0, 0), (1, 1)):
        at = owner == client
        outputs[good, at, 0] = y[at] + 0.1 * rng.normal(size=at.sum())
    found = learn_weights(outputs, y, owner, 2, False, np.array([0.5, 0.5]), 0)
    assert found.by_client[0, 0] > 0.9
    assert found.by_client[1, 1] > 0.9


def test_a_small_client_leans_on_the_others():
    outputs, y, owner = _two(3000, 1, 3, (1.0, 0.2))
    owner[:4] = 1  # four rows, on which the first candidate happens to be perfect
    outputs[0, :4, 0] = y[:4]
    found = learn_weights(outputs, y, owner, 2, False, np.array([0.5, 0.5]), 0)
    assert found.by_client[1, 1] > 0.5


def test_probabilities_are_mixed_by_likelihood():
    rng = np.random.default_rng(5)
    truth = rng.random(5000)
    y = (rng.random(5000) < truth).astype(float)
    right, flat = np.column_stack([1 - truth, truth]), np.full((5000, 2), 0.5)
    owner = rng.integers(10, size=5000)
    found = learn_weights(np.stack([flat, right]), y, owner, 10, True, np.array([0.5, 0.5]), 0)
    assert found.overall[1] > 0.9
    np.testing.assert_allclose(found.unseen.sum(1), 1)


class _Fixed:
    def __init__(self, value: float) -> None:
        self.value = value

    def outputs(self, X, owner):
        return np.full((len(X), 1), self.value)


def test_a_stack_is_the_weighted_average_also_for_new_clients():
    stack = Stack({"a": _Fixed(1.0), "b": _Fixed(3.0)}, np.array([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]]))
    np.testing.assert_array_equal(stack.outputs(np.zeros((3, 1)), np.array([0, 1, -1]))[:, 0], [1.0, 2.0, 3.0])
