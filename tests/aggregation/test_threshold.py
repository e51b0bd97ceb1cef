"""Threshold-Clustering against a plain twin of Algorithm 3, its radius rules and the estimator."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.utils.estimator_checks import parametrize_with_checks

from coterie.aggregation.radius import Fixed, Percentile, Proof, Theory
from coterie.aggregation.threshold import ThresholdClustering, threshold_centers, threshold_clustering
from coterie.errors import ConfigError, DataError


def twin(points, centers, radius, rounds):
    """Algorithm 3 as it is printed: one centre, one point at a time; `radius(distances)`."""
    ended, inside = [], []
    for v in centers:
        for _ in range(rounds):
            distances = [float(np.sqrt(((z - v) ** 2).sum())) for z in points]
            tau = radius(distances)
            total = np.zeros_like(v)
            for z, d in zip(points, distances, strict=True):
                total = total + (z if d <= tau else v)
            v = total / len(points)
        ended.append(v)
        inside.append([d <= tau for d in distances])
    return np.array(ended), np.array(inside)


def two_blobs(seed=0, n=20, dim=7, apart=5.0):
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.normal(size=(n, dim)), rng.normal(size=(n, dim)) + apart])


@pytest.mark.parametrize("p", [5, 20, 29, 50, 100])
def test_equals_the_printed_algorithm_with_percentiles(p):
    z = two_blobs()
    starts = np.concatenate([z[[0, 25]], np.zeros((1, 7))])
    got = threshold_clustering(z, starts, radius=Percentile(p), rounds=6)
    centers, members = twin(z, starts, lambda d: np.percentile(d, p), 6)
    np.testing.assert_allclose(got.centers, centers, atol=1e-12)
    np.testing.assert_array_equal(got.members, members)


@pytest.mark.parametrize("radius", [0.5, 2.5, 6.0, 100.0])
def test_equals_the_printed_algorithm_with_a_fixed_radius(radius):
    z = two_blobs(1)
    got = threshold_clustering(z, z, radius=radius, rounds=4)  # every point starts a centre
    centers, members = twin(z, z, lambda d: radius, 4)
    np.testing.assert_allclose(got.centers, centers, atol=1e-12)
    np.testing.assert_array_equal(got.members, members)


def test_result_has_radii_members_and_distances_of_every_round():
    z = two_blobs(2)
    got = threshold_clustering(z, z[:3], radius=Percentile(30), rounds=5)
    assert got.radii.shape == (5, 3)
    assert got.members.shape == (3, 40)
    assert got.history.shape == (6, 3, 40)
    np.testing.assert_allclose(got.history[-1, 1], np.linalg.norm(z - got.centers[1], axis=1), atol=1e-12)
    np.testing.assert_allclose(got.radii[0, 2], np.percentile(np.linalg.norm(z - z[2], axis=1), 30))
    np.testing.assert_array_equal(np.asarray(got), got.centers)
    assert threshold_clustering(z, z[:3], history=False).history is None


def test_tensors_in_tensors_out_and_one_centre_alone():
    z = torch.from_numpy(two_blobs(3)).float()
    got = threshold_clustering(z, z[4], radius=Percentile(20))
    assert isinstance(got.centers, torch.Tensor)
    assert got.centers.dtype == torch.float32
    ((center, members),) = threshold_centers([(z, z[4])], Percentile(20))
    torch.testing.assert_close(center, got.centers[0])
    assert torch.equal(members, got.members[0])
    problem = {"a": z[:, :3], "b": {"c": z[:, 3:]}}, {"a": z[4, :3], "b": {"c": z[4, 3:]}}
    ((tree, _),) = threshold_centers([problem], Percentile(20))
    torch.testing.assert_close(torch.cat([tree["a"], tree["b"]["c"]]), center)


def test_chunks_of_centres_change_nothing(monkeypatch):
    z = two_blobs(4)
    whole = threshold_clustering(z, z, radius=Percentile(25))
    monkeypatch.setattr("coterie.aggregation.threshold._ENTRIES", 300)
    monkeypatch.setattr("coterie.aggregation.gram._ENTRIES", 90)
    pieces = threshold_clustering(z, z, radius=Percentile(25))
    np.testing.assert_allclose(pieces.centers, whole.centers, atol=1e-12)
    np.testing.assert_array_equal(pieces.members, whole.members)
    np.testing.assert_allclose(pieces.history, whole.history, atol=1e-9)


def test_no_digits_are_lost_to_far_points():
    """A mean as origin would lie 10⁸ away, and squared distances among the good points would be rounded to about 1."""
    z = two_blobs(5)
    far = np.concatenate([np.full((8, 7), 1e9), z])
    for starts in (z[:1], z[:3]):
        got = threshold_clustering(far, starts, radius=3.0)
        centers, members = twin(far, starts, lambda d: 3.0, 10)
        np.testing.assert_allclose(got.centers, centers, atol=1e-9)
        np.testing.assert_array_equal(got.members, members)


def test_points_outside_the_ball_have_exactly_no_influence():
    z = two_blobs(6, apart=40.0)
    base = threshold_clustering(z, z[:1], radius=8.0).centers
    assert np.abs(base - z[0]).max() > 0.1  # the ball is not empty
    far = z.copy()
    far[20:] = 1e7 * np.random.default_rng(0).normal(size=(20, 7))
    np.testing.assert_array_equal(threshold_clustering(far, z[:1], radius=8.0).centers, base)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), p=st.integers(1, 100), rounds=st.integers(1, 6))
def test_order_and_position_do_not_matter(seed, p, rounds):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(12, 3)) + 4 * rng.integers(0, 2, (12, 1))
    order, shift = rng.permutation(12), rng.normal(size=3) * 10
    base = threshold_clustering(z, z[:2], Percentile(p), rounds)
    other = threshold_clustering(z[order] + shift, z[:2] + shift, Percentile(p), rounds)
    np.testing.assert_allclose(other.centers, base.centers + shift, atol=1e-9)
    np.testing.assert_array_equal(other.members, base.members[:, order])


def test_percentile_counts_the_point_on_the_edge():
    distances = torch.arange(101.0, dtype=torch.float64).unsqueeze(0)
    for p in range(1, 101):
        assert float(Percentile(p)(distances, 0)) == p  # also 29, 57 and 58, where p/100 · 100 is not p


def test_radii_of_the_theory():
    one = torch.zeros(1, 1, dtype=torch.float64)
    assert float(Theory(0.25, 2.0, 8.0)(one, 3)) == pytest.approx(2.0)
    assert float(Fixed(1.5)(one, 0)) == 1.5
    rule = Proof(0.25, 2.0, 8.0, members=10, malicious=0.1)
    floor = 4 / 10 + 8 / 8 + 0.1 * 16
    error = 4.0
    for round in range(5):
        assert rule.squared_error(round) == pytest.approx(error)
        assert float(rule(one, round)) ** 2 == pytest.approx(error + 0.25 * 16)
        error = (1 - 0.125) * error + floor
    assert Proof(0.5, 1.0, 9.0, members=5, start_error=3.0, gradient=2.0)(one, 0).item() == pytest.approx(15.5**0.5)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Percentile(0), "p to be a number above 0 and at most 100"),
        (lambda: Fixed(-1.0), "radius"),
        (lambda: Theory(0.0, 1.0, 1.0), "delta"),
        (lambda: Proof(0.5, 1.0, 1.0, members=0), "members"),
        (lambda: threshold_clustering(np.eye(3), np.eye(3), radius="big"), "radius must be"),
        (lambda: threshold_clustering(np.eye(3), np.eye(3), rounds=0), "rounds"),
    ],
)
def test_bad_settings_are_said(call, words):
    with pytest.raises(ConfigError, match=words):
        call()


@pytest.mark.parametrize(
    ("points", "centers", "words"),
    [
        (np.eye(3), np.eye(2), "columns"),
        (np.zeros((0, 3)), np.eye(3), "at least one row"),
        (np.array([[1.0, np.nan]]), np.zeros((1, 2)), "finite"),
        (np.zeros(3), np.zeros((1, 3)), "table"),
    ],
)
def test_bad_data_are_said(points, centers, words):
    with pytest.raises(DataError, match=words):
        threshold_clustering(points, centers)


# ---- the estimator ---------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@parametrize_with_checks(
    [ThresholdClustering(clusters=3)],
    expected_failed_checks=lambda _: {
        "check_dtype_object": "What is no number gets a DataError, which is a ValueError."
    },
)
def test_follows_scikit_learn(estimator, check):
    check(estimator)


def test_estimator_finds_planted_clusters_whatever_the_start():
    z, truth = two_blobs(7, apart=6.0), np.repeat([0, 1], 20)
    for init in ("k-means++", "points", z[[3, 33]]):
        model = ThresholdClustering(2, init=init, rounds=20).fit(z)
        assert len(model.cluster_centers_) == 2
        same = model.labels_[:, None] == model.labels_
        np.testing.assert_array_equal(same, truth[:, None] == truth)
        np.testing.assert_array_equal(model.predict(z + 0.1)[:, None] == model.predict(z), same)
    with pytest.raises(ConfigError, match="init must be"):
        ThresholdClustering(init="nowhere").fit(z)


@pytest.mark.parametrize("number", [np.float32(1), np.int64(1), 1])
def test_a_radius_may_be_any_number(number):
    points = np.array([[0.0], [1.0], [3.0]])
    got = threshold_clustering(points, points[:1], radius=number, rounds=1)
    np.testing.assert_allclose(got.centers, [[1 / 3]])


def naive(points, centers, radius, rounds):
    """Eq. 2.4, centre by centre."""
    centers = np.array(centers, float)
    for _ in range(rounds):
        for k, v in enumerate(centers):
            near = np.linalg.norm(points - v, axis=1) <= radius
            centers[k] = np.where(near[:, None], points, v).mean(0)
    return centers


@pytest.mark.parametrize("far", [1e4, 1e5, 1e6, 3e6, 1e7, 1e9])
def test_a_ball_far_from_all_others_holds_no_more_than_its_own(far):
    """Rounding about an origin among the other points would be as large as the ball."""
    points = np.array([[0.0, 0], [0, 1], [0, 2], [0, 3], [far, 0], [far, 1]])
    got = threshold_clustering(points, points[[4, 0]], radius=0.5, rounds=3)
    assert got.members.sum(1).tolist() == [1, 1]
    np.testing.assert_allclose(got.centers, points[[4, 0]], atol=1e-15 * far)
    np.testing.assert_allclose(got.history[-1, 0, 4:], [0, 1], atol=1e-15 * far)
    tie = threshold_clustering(points, points[[4, 0]], radius=1, rounds=1)
    assert tie.members.sum(1).tolist() == [2, 2]
    single = torch.tensor(points[:, :1], dtype=torch.float32)
    assert threshold_clustering(single, single[[4, 0]], radius=0.5, rounds=1).members.sum(1).tolist() == [2, 4]


@pytest.mark.parametrize("order", [1, -1])
def test_an_outlier_in_the_first_row_changes_no_small_ball(order):
    near = [[0, 0], [0.03, 0], [1e4, 0], [1e4, 0.03], [2e4, 0], [2e4, 0.03]]
    points = np.array([[1e6, 1e6], *near])[::order]
    starts = np.array([[0, 0], [1e4, 0], [2e4, 0.03]])
    for radius in (0.01, 0.04):
        got = threshold_clustering(points, starts, radius=radius, rounds=3)
        np.testing.assert_allclose(got.centers, naive(points, starts, radius, 3), rtol=0, atol=1e-10)


@pytest.mark.parametrize("wrong", [0, -1, 2.5, True])
@pytest.mark.parametrize("init", ["k-means++", "points"])
def test_the_number_of_clusters_is_a_whole_number(wrong, init):
    points = np.random.default_rng(0).normal(size=(20, 2))
    with pytest.raises(ConfigError, match="clusters must be a whole number ≥ 1; got"):
        ThresholdClustering(wrong, init=init).fit(points)
    with pytest.raises(ConfigError, match=r"rounds must be a whole number ≥ [01]; got"):
        ThresholdClustering(2, init=init, rounds=wrong).fit(points)
    with pytest.raises(ConfigError, match="clusters=21 needs as many points"):
        ThresholdClustering(21).fit(points)
