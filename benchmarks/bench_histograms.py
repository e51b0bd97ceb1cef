"""Clustering histograms in KL against scikit-learn's KMeans on the same CSR matrix, and the memory of a streamed fit.

    python benchmarks/bench_histograms.py            speed: 10⁵ users × 10³ tokens, 500 tokens each, 10 clusters
    python benchmarks/bench_histograms.py --stream   peak memory at 10⁵ and 10⁶ users read from disk (1.2 GB)

One run; ratios are printed, nothing is asserted. OMP_NUM_THREADS rules the threads of both.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import scipy.sparse as sp

TOKENS, LENGTH, CLUSTERS = 1000, 500, 10


def blocks(users: int, spread: float, seed: int = 0, size: int = 5000) -> Iterator[sp.csr_array]:
    """Users of ten Zipf-like clusters; spread 0 makes all clusters the same, so that Lloyd has work to the end."""
    rng = np.random.default_rng(seed)
    centers = np.exp(spread * rng.normal(size=(CLUSTERS, TOKENS))) / np.arange(1, TOKENS + 1)
    centers /= centers.sum(axis=1, keepdims=True)
    for start in range(0, users, size):
        labels = rng.integers(CLUSTERS, size=min(size, users - start))
        gammas = rng.standard_gamma(300 * centers[labels]) + 1e-300
        yield sp.csr_array(rng.multinomial(LENGTH, gammas / gammas.sum(axis=1, keepdims=True)).astype(np.float32))


def speed(users: int) -> None:
    from sklearn.cluster import KMeans

    from coterie.estimation.histograms.mixture import HistogramMixture

    warnings.simplefilter("ignore")  # KMeans says that it did not converge
    print(f"{users} users × {TOKENS} tokens × {LENGTH}, {CLUSTERS} clusters, at most 50 iterations, same first centres")
    print(
        "seconds of the clock (of the processors), iterations; the ratio: KMeans' processor time per iteration to ours"
    )
    for name, spread in (("clustered", 0.5), ("no clusters", 0.0)):
        counts = sp.csr_array(sp.vstack(list(blocks(users, spread)), format="csr"))
        first = counts[:CLUSTERS].toarray()
        rows = counts / LENGTH
        ours = _timed(lambda c=counts, f=first: HistogramMixture(CLUSTERS, 50, 0.0, init=f).fit(c))
        theirs = _timed(
            lambda r=rows, f=first: KMeans(CLUSTERS, init=f / LENGTH, n_init=1, max_iter=50, tol=0.0).fit(r)
        )
        seeded = _timed(lambda c=counts: HistogramMixture(CLUSTERS, 50, 0.0).fit(c))
        texts = [
            f"{label} {wall:.2f} ({cpu:.2f}), {model.n_iter_}"
            for label, (wall, cpu, model) in (("ours", ours), ("KMeans", theirs), ("ours with seeding", seeded))
        ]
        ratio = (theirs[1] / theirs[2].n_iter_) / (ours[1] / ours[2].n_iter_)
        print(f"{name}: {'; '.join(texts)}; ratio {ratio:.2f}", flush=True)


def _timed(work):  # type: ignore[no-untyped-def]
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    return time.perf_counter() - wall, time.process_time() - cpu, result


def stream(sizes: list[int], iterations: int) -> None:
    from coterie.estimation.histograms.mixture import save_counts

    for users in sizes:
        with tempfile.TemporaryDirectory() as name:
            save_counts(name, blocks(users, 0.5))
            size = sum(path.stat().st_size for path in Path(name).iterdir()) / 2**20
            child = [sys.executable, __file__, "--fit", name, "--iterations", str(iterations)]
            print(
                f"{users} users, {size:.0f} MiB on disk: {subprocess.check_output(child, text=True).strip()}",
                flush=True,
            )


def fit(folder: str, iterations: int) -> None:
    from coterie.estimation.histograms.mixture import HistogramMixture

    seconds, _, model = _timed(lambda: HistogramMixture(CLUSTERS, iterations, 0.0).fit_stream(folder))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{seconds:.1f} s, {model.n_iter_} iterations, peak memory {peak:.0f} MiB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=100_000)
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--sizes", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--fit", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.fit:
        fit(options.fit, options.iterations)
    elif options.stream:
        stream(options.sizes, options.iterations)
    else:
        speed(options.users)
