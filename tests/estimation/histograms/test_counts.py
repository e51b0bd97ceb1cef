"""What histograms can be read from, what is refused and in which words, and fitting from disk."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from coterie.estimation.advice import advise
from coterie.estimation.histograms.baselines import FedAvgHistogram, IFCAHistograms
from coterie.estimation.histograms.mixture import HistogramMixture, TokenReduction, kl_rows, save_counts
from coterie.estimation.histograms.model import sample_histograms
from coterie.estimation.histograms.soft import DirichletMultinomialMixture


@pytest.fixture(scope="module")
def counts():
    rng = np.random.default_rng(0)
    centers = rng.dirichlet(np.full(12, 0.5), 3) * 0.99 + 0.01 / 12
    return (
        sample_histograms(centers, users=10_000, tokens=30, concentration=60, rng=rng).counts.toarray().astype(np.int64)
    )


def long_format(counts, names=None):
    users, tokens = np.nonzero(counts)
    token = tokens if names is None else np.asarray(names)[tokens]
    return pd.DataFrame({"user": users, "token": token, "count": counts[users, tokens]})


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32, np.int64, np.float32, np.float64])
def test_every_kind_of_matrix_gives_the_same_fit(counts, dtype):
    small = counts[:200]
    expected = HistogramMixture(3).fit(small)
    before = sp.csr_matrix(small.astype(dtype))
    kept = before.copy()
    for form in (small.astype(dtype), before, sp.csr_array(before), sp.csc_array(before), sp.coo_array(before)):
        fitted = HistogramMixture(3).fit(form)
        np.testing.assert_array_equal(fitted.labels_, expected.labels_)
        np.testing.assert_allclose(fitted.centers_, expected.centers_, atol=1e-12)
    assert before.dtype == kept.dtype
    assert (before != kept).nnz == 0


def test_stored_zeros_and_unsorted_repeated_entries_are_harmless():
    messy = sp.csr_array((np.array([2, 1, 0, 1, 3]), np.array([2, 0, 1, 0, 1]), np.array([0, 4, 5])), shape=(2, 3))
    model = HistogramMixture(1).fit(messy)
    np.testing.assert_allclose(model.centers_, [[0.25, 0.5, 0.25]])
    assert messy.nnz == 5


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_tables_of_user_token_count(counts, tmp_path, suffix):
    small = counts[:150]
    names = [f"w{number:02d}" for number in range(12)]
    table = long_format(small, names).sample(frac=1.0, random_state=0)
    path = tmp_path / f"counts.{suffix}"
    table.to_parquet(path) if suffix == "parquet" else table.to_csv(path, index=False)
    model, expected = HistogramMixture(3).fit(path), HistogramMixture(3).fit(small)
    np.testing.assert_allclose(model.centers_, expected.centers_, atol=1e-12)
    assert list(model.vocabulary_) == names
    np.testing.assert_array_equal(model.users_, np.arange(150))
    part = table[table["token"] != "w03"]
    np.testing.assert_allclose(model.personalise(part).sum(axis=1), 1.0)
    with pytest.raises(ValueError, match="'zzz' is not"):
        model.personalise(table.assign(token="zzz"))


def test_npz_of_csr_parts(counts, tmp_path):
    small = sp.csr_matrix(counts[:150])
    np.savez(
        tmp_path / "plain.npz",
        indptr=small.indptr,
        indices=small.indices.astype(np.uint16),
        data=small.data,
        shape=small.shape,
    )
    sp.save_npz(tmp_path / "scipy.npz", small)
    expected = HistogramMixture(3).fit(small).centers_
    for name in ("plain.npz", "scipy.npz"):
        np.testing.assert_allclose(HistogramMixture(3).fit(tmp_path / name).centers_, expected, atol=1e-12)
        np.testing.assert_allclose(HistogramMixture(3).fit_stream(tmp_path / name).centers_, expected, atol=1e-12)


# Refusals

GOOD = np.array([[1, 2, 3], [3, 2, 1], [1, 0, 5]])


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (GOOD - 2, "must not be negative; got -2"),
        (np.where(GOOD == 5, np.nan, GOOD), "must be finite"),
        (np.where(GOOD == 5, np.inf, GOOD), "must be finite"),
        (GOOD[0], r"got 1 dimension.*reshape"),
        (np.zeros((3, 0)), "at least one user and one token"),
        (np.zeros((3, 3)), "all users are empty"),
        (np.array([["a", "b"]]), "must be numbers"),
        (GOOD[:1], "clusters=2, n_samples=1"),
        (np.vstack([GOOD[:1], np.zeros((4, 3))]), "clusters=2, n_samples=1"),
        ("nowhere.parquet", "does not exist"),
        (pd.DataFrame({"user": [1], "word": [2], "count": [3]}), "token missing, got user, word, count"),
        (pd.DataFrame({"user": [1], "token": [2], "count": [3], "age": [4]}), "got also age"),
        (pd.DataFrame({"user": [1], "token": [0], "count": [np.nan]}), "no missing values"),
        (pd.DataFrame({"user": [1, 1], "token": [0, 0], "count": [5, -3]}), "must not be negative"),
        (pd.DataFrame({"user": [1], "token": [-1], "count": [3]}), "Integer tokens are column numbers"),
        (pd.DataFrame({"user": [1], "token": [1], "count": ["x"]}), "count must be numeric"),
    ],
)
def test_bad_counts_are_refused_with_the_rule(bad, words):
    with pytest.raises(ValueError, match=words):
        HistogramMixture(2).fit(bad)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"clusters": 0}, "clusters must be a whole number ≥ 1"),
        ({"n_init": 0}, "n_init must be a whole number ≥ 1"),
        ({"temperature": -1.0}, "temperature must be a finite number of at least 0"),
        ({"tol": float("nan")}, "tol must be a finite number"),
        ({"lam": 1.5}, "lam must be a number from 0 to 1, or None"),
        ({"concentration": 0.0}, "concentration must be a finite number above 0"),
        ({"smoothing": -1.0}, "smoothing must be a finite number of at least 0"),
        ({"seed_smoothing": 0.0}, "seed_smoothing must be a finite number above 0"),
        ({"direction": "up"}, "direction must be one of .center_user., .user_center.; got 'up'"),
        ({"weighting": "row"}, "weighting must be one of"),
        ({"empty": "drop"}, "empty must be one of"),
        ({"init": "random"}, "init must be"),
        ({"init": np.ones((2, 5))}, "2 non-negative centres over 3 tokens"),
        ({"reduction": TokenReduction()}, "keep or threshold"),
        ({"reduction": TokenReduction(keep=9)}, "between 1 and all 3 tokens"),
        ({"reduction": TokenReduction(threshold=2.0)}, "drops every token"),
    ],
)
def test_bad_settings_are_refused_with_the_rule(settings, words):
    with pytest.raises(ValueError, match=words):
        HistogramMixture(**{"clusters": 2} | settings).fit(GOOD)


def test_refusals_of_the_others():
    model = HistogramMixture(2).fit(GOOD)
    for work in (model.personalise, model.predict, model.transform):
        with pytest.raises(ValueError, match="X has 4 features, but HistogramMixture is expecting 3 features"):
            work(np.ones((2, 4)))
    with pytest.raises(ValueError, match="below the 3"):
        model.personalise(pd.DataFrame({"user": [1], "token": [7], "count": [3]}))
    with pytest.raises(ValueError, match="all users are empty"):
        FedAvgHistogram().fit(np.zeros((2, 2)))
    with pytest.raises(ValueError, match="learning_rate must be a finite number above 0"):
        IFCAHistograms(2, learning_rate=0.0).fit(GOOD)
    with pytest.raises(ValueError, match="2 centres over 3 tokens"):
        IFCAHistograms(2, init=np.ones((2, 2))).fit(GOOD)
    with pytest.raises(ValueError, match="same number of clusters"):
        DirichletMultinomialMixture(2, start=HistogramMixture(3)).fit(GOOD)
    with pytest.raises(ValueError, match="max_iter must be a whole number"):
        DirichletMultinomialMixture(2, max_iter=0).fit(GOOD)
    with pytest.raises(ValueError, match="1 users have none"):
        kl_rows(np.array([[0, 0], [1, 1]]), np.full(2, 0.5))


def test_importing_histograms_does_not_import_torch():
    code = "import sys; from coterie.estimation.histograms import mixture, soft; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# From disk


def test_streaming_equals_fitting_in_memory(counts, tmp_path):
    folder = save_counts(tmp_path / "store", (counts[start : start + 999] for start in range(0, len(counts), 999)))
    for options in ({}, {"weighting": "token"}, {"reduction": TokenReduction(keep=6)}, {"sample_users": 500}):
        here, there = HistogramMixture(3, **options).fit(counts), HistogramMixture(3, **options).fit_stream(folder)
        np.testing.assert_array_equal(there.labels_, here.labels_)
        np.testing.assert_allclose(there.centers_, here.centers_, atol=1e-12)
        assert there.objective_ == pytest.approx(here.objective_)
        assert there.concentration_ == pytest.approx(here.concentration_)
    np.testing.assert_array_equal(HistogramMixture(3).fit(folder).labels_, HistogramMixture(3).fit(counts).labels_)


@pytest.mark.parametrize("names", [None, [f"w{number:02d}" for number in range(12)]])
@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_streaming_a_sorted_table(counts, tmp_path, monkeypatch, names, suffix):
    monkeypatch.setattr("coterie.estimation.histograms.count_store._BATCH", 1000)  # users are cut by batches
    table = long_format(counts[:2000], names)
    path = tmp_path / f"table.{suffix}"
    table.to_parquet(path) if suffix == "parquet" else table.to_csv(path, index=False)
    streamed, expected = HistogramMixture(3).fit_stream(path), HistogramMixture(3).fit(counts[:2000])
    np.testing.assert_array_equal(streamed.labels_, expected.labels_)
    np.testing.assert_allclose(streamed.centers_, expected.centers_, atol=1e-12)
    np.testing.assert_array_equal(streamed.users_, np.arange(2000))
    assert (streamed.vocabulary_ is None) == (names is None)
    table.iloc[::-1].to_parquet(tmp_path / "wrong.parquet")
    with pytest.raises(ValueError, match="must be sorted by user"):
        HistogramMixture(3).fit_stream(tmp_path / "wrong.parquet")


def test_a_broken_folder_is_refused(counts, tmp_path):
    folder = save_counts(tmp_path / "store", [counts[:50]])
    indices = np.load(folder / "indices.npy")
    np.save(folder / "indices.npy", indices + 5)
    with pytest.raises(ValueError, match="between 0 and 11"):
        HistogramMixture(3).fit(folder)
    np.save(folder / "indices.npy", indices[:-1])
    with pytest.raises(ValueError, match="as many entries as indptr says"):
        HistogramMixture(3).fit(folder)
    (folder / "data.npy").unlink()
    with pytest.raises(ValueError, match="data missing"):
        HistogramMixture(3).fit(folder)
    with pytest.raises(ValueError, match="at least one block"):
        save_counts(tmp_path / "none", [])


MEMORY = """
import resource, sys
from coterie.estimation.histograms.soft import DirichletMultinomialMixture
from coterie.estimation.histograms.mixture import HistogramMixture
HistogramMixture(10, max_iter=2).fit_stream(sys.argv[1])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_streamed_memory_is_flat_in_the_number_of_users(tmp_path):
    rng = np.random.default_rng(0)
    block = sp.csr_array(rng.multinomial(200, rng.dirichlet(np.full(1000, 0.3), 10)[rng.integers(10, size=5000)]))
    peaks = []
    for users in (100_000, 1_000_000):
        folder = save_counts(tmp_path / str(users), (block for _ in range(users // 5000)))
        peaks.append(int(subprocess.check_output([sys.executable, "-c", MEMORY, str(folder)])) / 1024)
    assert peaks[1] < 4096
    assert peaks[1] - peaks[0] < 150  # MiB: 36 bytes or so for each of 900,000 more users, and no data


def test_the_code_in_the_documentation_runs_and_prints_what_it_says(capsys):
    page = (Path(__file__).parents[3] / "docs" / "histograms.md").read_text()
    exec("\n".join(re.findall(r"```python\n(.*?)```", page, flags=re.S)), {})
    alone, together, concentration, shape = capsys.readouterr().out.split("\n")[:4]
    assert (round(float(alone), 2), round(float(together), 2)) == (0.66, 0.14)
    assert float(concentration) == pytest.approx(150, rel=0.03)
    assert shape == "(4, 100)"


def test_repeated_small_integers_do_not_overflow(tmp_path):
    """200 + 100 of eight bits is 300, whatever the way in."""
    users, tokens, counts = [0, 0, 0, 1, 2], [0, 0, 1, 1, 1], np.array([200, 100, 50, 9, 4])
    small = sp.coo_array((counts.astype(np.uint8), (users, tokens)), shape=(3, 2))
    table = np.array([[300.0, 50.0], [0.0, 9.0], [0.0, 4.0]])
    expected = HistogramMixture(1).fit(table).centers_
    frame = pd.DataFrame({"user": users, "token": tokens, "count": counts.astype(np.uint8)})
    frame.to_parquet(tmp_path / "small.parquet")
    save_counts(tmp_path / "small", [small])
    for fitted in (
        HistogramMixture(1).fit(small),
        HistogramMixture(1).fit(frame),
        HistogramMixture(1).fit_stream(tmp_path / "small.parquet"),
        HistogramMixture(1).fit_stream(tmp_path / "small"),
    ):
        np.testing.assert_allclose(fitted.centers_, expected)
    pd.testing.assert_frame_equal(advise(counts=small).table, advise(counts=table).table)


@pytest.mark.parametrize("word", ["NA", "null", "nan", "None", "NaN"])
def test_words_that_look_missing_are_words(tmp_path, word):
    path = tmp_path / "words.csv"
    path.write_text(f"user,token,count\nA,{word},1\n{word},b,2\n")
    for model in (HistogramMixture(1).fit(path), HistogramMixture(1).fit_stream(path)):
        assert set(model.vocabulary_) == {word, "b"}
        assert set(model.users_) == {"A", word}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("a,,1", "no missing values"),
        (",b,1", "no missing values"),
        ("a,b,", "no missing values"),
        ("a,b,x", "count must be numeric"),
        ("", "at least one row"),
        ("a,1000000000000,1", "pass them as text"),
        ("a,-1,1", "must not be negative"),
    ],
)
def test_bad_csv_gets_one_sentence_in_memory_and_streamed(tmp_path, rows, message):
    path = tmp_path / "bad.csv"
    path.write_text(f"user,token,count\n{rows}\n")
    for fit in (HistogramMixture(1).fit, HistogramMixture(1).fit_stream):
        with pytest.raises(ValueError, match=message):
            fit(path)


@pytest.mark.parametrize("format", ["csr", "csc", "coo", "bsr"])
def test_scipy_files_of_any_format(tmp_path, counts, format):
    small = counts[:12]  # square: columns taken for rows would go unseen
    expected = HistogramMixture(2).fit(small)
    sp.save_npz(tmp_path / "counts.npz", sp.csr_array(small).asformat(format))
    for model in (HistogramMixture(2).fit, HistogramMixture(2).fit_stream):
        assert model(tmp_path / "counts.npz").objective_ == pytest.approx(expected.objective_, rel=1e-6)


@pytest.mark.parametrize("bad", [{"clusters": 2.5}, {"clusters": "3"}, {"clusters": (2, 2.5)}, {"max_iter": 5.5}])
def test_settings_must_be_whole_numbers(bad):
    with pytest.raises(ValueError, match=f"{next(iter(bad))} must be a whole number ≥ 1"):
        HistogramMixture(**bad).fit(np.ones((30, 2)))


def test_advice_reads_what_the_mixture_reads(tmp_path, counts):
    small = counts[:60]
    frame = long_format(small).sample(frac=1, random_state=0)
    frame.to_csv(tmp_path / "counts.csv", index=False)
    expected = advise(counts=small)
    for source in (frame, tmp_path / "counts.csv", str(tmp_path / "counts.csv"), pd.DataFrame(small)):
        told = advise(counts=source)
        assert told.clients == 60
        pd.testing.assert_frame_equal(told.table, expected.table)
