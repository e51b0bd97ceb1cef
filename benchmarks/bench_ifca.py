"""A round of IFCA on rotated MNIST's sizes against the dense matrix products with the same floating-point operations.

`python benchmarks/bench_ifca.py [--clients 240] [--repeat 3]`: random pixels, k = 4, 200 samples a client, 200 hidden units,
τ = 10 full-batch steps; one worker, one thread; contenders take turns, medians of CPU seconds, one ratio.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import torch

import coterie as ct

K, SAMPLES, PIXELS, HIDDEN, CLASSES, STEPS = 4, 200, 784, 200, 10, 10


def products(clients: int) -> None:
    """What a round must at least multiply: k forward passes to choose, then `STEPS` forward and backward passes."""
    x, w1, w2 = torch.randn(SAMPLES, PIXELS), torch.randn(HIDDEN, PIXELS), torch.randn(CLASSES, HIDDEN)
    h, d2, d1 = torch.randn(SAMPLES, HIDDEN), torch.randn(SAMPLES, CLASSES), torch.randn(SAMPLES, HIDDEN)
    for _ in range(clients):
        for _ in range(K + STEPS):
            x @ w1.T
            h @ w2.T
        for _ in range(STEPS):
            d2.T @ h
            d2 @ w2
            d1.T @ x


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=240)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    n = options.clients
    fed = ct.Federation.from_flat(
        rng.random((n * SAMPLES, PIXELS), np.float32),
        rng.integers(0, CLASSES, n * SAMPLES),
        sizes=np.full(n, SAMPLES),
        clients=list(range(n)),
        n_test=np.zeros(n, np.int64),
    )
    task = ct.Task(ct.models.mlp(PIXELS, HIDDEN, CLASSES))
    ifca = ct.IFCA(clusters=K, local=ct.LocalSGD(steps=STEPS, lr=0.1, batch_size=None), start="random")
    dense, ours, marks = [], [], [time.process_time()]

    def turn(row: dict[str, object], state: object) -> None:
        ours.append(time.process_time() - marks[-1])
        began = time.process_time()
        products(n)
        dense.append(time.process_time() - began)
        marks.append(time.process_time())

    engine = ct.engines.LocalEngine(workers=1)
    ct.fit(ifca, fed, task, rounds=options.repeat + 1, engine=engine, callbacks=[turn], alone=False, progress=False)
    a, b = statistics.median(ours[1:]), statistics.median(dense[1:])
    print(
        f"{n} clients: IFCA round {a:.2f} CPU s, products {b:.2f} CPU s, ratio {a / b:.2f} (medians of {options.repeat})"
    )


if __name__ == "__main__":
    main()
