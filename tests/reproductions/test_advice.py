"""The advice on real data: nothing may beat it by more than two standard errors on data kept back."""

import pytest

import coterie as ct
from coterie.datasets.files import is_available
from reproductions.advice import SYNTHETIC, claims, judge_counts, judge_elections, judge_federation, judge_heart
from reproductions.experiment import Records
from reproductions.runner import records, run

FEDERATIONS = {
    "har.npz": lambda: ct.datasets.har(),
    "mnist.npz": lambda: ct.datasets.mnist(clients=40, samples=100, test_samples=100),
    "femnist.npz": lambda: ct.datasets.femnist(clients=30),
    "cifar10.npz": lambda: ct.datasets.cifar10(clients=10, samples=500, test_samples=200),
}


def right(gaps, told_apart):
    """Advised minus best is no more than chance, and at least one other choice would have been wrong."""
    assert all(mean <= 2 * error for mean, error in gaps.values()), gaps
    mean, error = gaps[told_apart]
    assert mean < -2 * error, gaps


@pytest.mark.slow
def test_digits():
    advice, gaps = judge_federation(ct.datasets.digits())
    assert advice == "clustered"
    right(gaps, "shrunk")


@pytest.mark.slow
def test_where_collaboration_does_not_pay():
    """Every client numbers the digits in its own way and has pictures enough."""
    advice, gaps = judge_federation(ct.datasets.digits(transform="shift_labels", clusters=10, clients=10))
    assert advice == "local"
    right(gaps, "clustered")


@pytest.mark.slow
@pytest.mark.parametrize("file", FEDERATIONS)
def test_pictures_and_phones(file):
    if not is_available(file):
        pytest.skip(f"needs {file} in COTERIE_DATA")
    right(judge_federation(FEDERATIONS[file]())[1], "global")


@pytest.mark.slow
def test_elections():
    right(judge_elections()[1], "global")


@pytest.mark.slow
def test_hearts():
    """Nothing is proven on four hospitals: they are told to stay alone, and nothing beats that by more than chance."""
    advice, gaps = judge_heart()
    assert advice == "local"
    assert all(mean <= 2 * error for mean, error in gaps.values()), gaps


@pytest.mark.slow
@pytest.mark.parametrize(("corpus", "least"), [("blogs", 500), ("imdb", 100)])
def test_words(corpus, least):
    if not is_available(f"user_tokens_{corpus}.npz"):
        pytest.skip(f"needs user_tokens_{corpus}.npz in COTERIE_DATA")
    right(judge_counts(corpus, least)[1], "global")


def test_a_wrong_advice_is_said():
    told = {"advice": "shrunk", "gaps": {"local": [0.3, 0.1], "shrunk": [0.0, 0.0], "global": [-0.3, 0.1]}}
    claim = claims(Records("quick", {"somewhere": dict.fromkeys("012", told)}))[0]
    assert not claim.holds
    assert "somewhere, advice shrunk: minus local, +0.3000" in claim.found


def test_synthetic_clients_get_the_advice_made_for_them(tmp_path):
    kept = run(SYNTHETIC, "quick", 8, tmp_path, lambda line: None)
    assert SYNTHETIC.claims(records(kept))[0].holds
