"""Which modules work, how their clients are run, and how fast against a plain PyTorch loop: the table of docs/networks.md.

    python benchmarks/bench_modules.py [--repeat 3] [--only LSTM,Dropout]

Every module trains in a small federation. It works when both engines agree and a run resumed in the middle ends
bit-identically. Speed is CPU time of the loop over coterie's, one thread each, the least of the repeats: read it as a
magnitude. Without --only the table between the marks in docs/networks.md is replaced.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import coterie as ct

PAGE = Path(__file__).parents[1] / "docs" / "networks.md"
MARKS = ("<!-- modules: begin -->", "<!-- modules: end -->")
CLIENTS, ROWS, BATCH = 20, 40, 10
SGD = ct.LocalSGD(epochs=1, lr=0.05, batch_size=BATCH)


class Last(nn.Module):
    """A recurrent layer's last value, and a linear layer."""

    def __init__(self, body: nn.Module, hidden: int) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(hidden, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x)[0][:, -1])
        return out


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 3)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))
        return out


class Attending(nn.Module):
    """nn.MultiheadAttention as it comes, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))
        return out


class Skipping(nn.Module):
    """Stochastic depth: a sample goes around the layer with probability 0.2."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(32, 64), nn.Linear(64, 64), nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        taken = x.new_empty(len(x), 1).bernoulli_(0.8) / 0.8 if self.training else 1.0
        out: Tensor = self.head(x + torch.relu(self.second(x)) * taken)
        return out


def half() -> nn.Module:
    """A frozen first layer, a learning head."""
    return nn.Sequential(nn.Linear(32, 64).requires_grad_(False), nn.ReLU(), nn.Linear(64, 3))


def dense(*middle: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(32, 64), *middle, nn.ReLU(), nn.Linear(64, 3))


def pictures(*middle: nn.Module) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), *middle, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(288, 3)
    )


VECTOR, IMAGE, SEQUENCE, TOKENS = (32,), (1, 12, 12), (12, 8), (12,)
MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "Linear, ReLU, Tanh, Sigmoid": (dense, VECTOR),
    "other activations (GELU)": (lambda: nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 3)), VECTOR),
    "LayerNorm": (lambda: dense(nn.LayerNorm(64)), VECTOR),
    "Dropout": (lambda: dense(nn.Dropout(0.2)), VECTOR),
    "AlphaDropout": (lambda: dense(nn.AlphaDropout(0.2)), VECTOR),
    "stochastic depth": (Skipping, VECTOR),
    "frozen layers": (half, VECTOR),
    "BatchNorm1d": (lambda: dense(nn.BatchNorm1d(64)), VECTOR),
    "tied weights": (Tied, VECTOR),
    "Conv2d, MaxPool2d": (pictures, IMAGE),
    "Conv2d and GroupNorm": (lambda: pictures(nn.GroupNorm(4, 8)), IMAGE),
    "Conv2d and InstanceNorm2d": (lambda: pictures(nn.InstanceNorm2d(8)), IMAGE),
    "Conv2d and BatchNorm2d": (lambda: pictures(nn.BatchNorm2d(8)), IMAGE),
    "Conv2d and Dropout2d": (lambda: pictures(nn.Dropout2d(0.2)), IMAGE),
    "RNN": (lambda: Last(nn.RNN(8, 16, batch_first=True), 16), SEQUENCE),
    "GRU": (lambda: Last(nn.GRU(8, 16, batch_first=True), 16), SEQUENCE),
    "LSTM": (lambda: Last(nn.LSTM(8, 16, batch_first=True), 16), SEQUENCE),
    "LSTM with dropout": (lambda: Last(nn.LSTM(8, 16, 2, batch_first=True, dropout=0.2), 16), SEQUENCE),
    "LSTM, two ways": (lambda: Last(nn.LSTM(8, 16, batch_first=True, bidirectional=True), 32), SEQUENCE),
    "MultiheadAttention with dropout": (Attending, SEQUENCE),
    "TransformerEncoderLayer": (
        lambda: nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.Flatten(), nn.Linear(96, 3)),
        SEQUENCE,
    ),
    "Embedding": (lambda: nn.Sequential(nn.Embedding(20, 8), nn.Flatten(), nn.Linear(96, 3)), TOKENS),
    "models.resnet8 (GroupNorm)": (ct.models.resnet8(3, 1), IMAGE),
    "models.resnet8 (BatchNorm)": (ct.models.resnet8(3, 1, norm="batch"), IMAGE),
    "models.transformer (attention)": (ct.models.transformer(20, 3, 12, 16, 2, 1), TOKENS),
    "models.lstm": (ct.models.lstm(20, 3, 8, 16, 1), TOKENS),
}


def data(shape: tuple[int, ...]) -> ct.Federation:
    rng = np.random.default_rng(0)
    tokens = shape == TOKENS
    clients = {}
    for i in range(CLIENTS):
        x = rng.integers(0, 20, (ROWS + 10, *shape)) if tokens else rng.normal(size=(ROWS + 10, *shape))
        y = rng.integers(0, 3, ROWS + 10)
        clients[i] = {"train": (x[:ROWS], y[:ROWS]), "test": (x[ROWS:], y[ROWS:])}
    return ct.Federation.from_arrays(clients, dtype="int64" if tokens else "float32")


def personal(result: ct.Result) -> dict[str, Tensor]:
    return result.evaluation.personal(result.evaluation.everyone())


def works(task: ct.Task, fed: ct.Federation) -> str:
    """Both engines agree, and so does a resumed run."""
    algorithm = ct.FedAvg(SGD)
    try:
        fast, plain = (
            personal(ct.fit(algorithm, fed, task, rounds=2, engine=e, alone=False)) for e in ("local", "loop")
        )
        with tempfile.TemporaryDirectory() as folder:
            ct.fit(algorithm, fed, task, rounds=1, out=folder, alone=False)
            again = personal(ct.fit(algorithm, fed, task, rounds=2, out=folder, resume=True, alone=False))
    except ct.errors.CoterieError as error:
        return f"no: {error}"
    close = all(torch.allclose(fast[n], plain[n], rtol=1e-4, atol=1e-5) for n in fast)
    return "yes" if close and all(torch.equal(fast[n], again[n]) for n in fast) else "NO: runs differ"


def way(task: ct.Task, fed: ct.Federation) -> str:
    params = task.init(0)
    if task.network(tuple(params), fed.x.shape[1:]) is not None:
        return "batched, gradients by hand"
    return "client by client" if task.one_by_one else "batched"


def loop_seconds(task: ct.Task, fed: ct.Federation) -> float:
    """One epoch of every client in plain PyTorch."""
    start = task.module(0)
    began = time.process_time()
    for client in fed.clients:
        model = copy.deepcopy(start)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
        x, y = fed.train(client)
        for rows in torch.randperm(len(x)).split(BATCH):
            optimiser.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimiser.step()
    return time.process_time() - began


def coterie_seconds(task: ct.Task, fed: ct.Federation) -> list[float]:
    """Rounds in one run; the first warms up."""
    seen: list[float] = [time.process_time()]
    ct.fit(
        ct.FedAvg(SGD), fed, task, rounds=4, engine=ct.engines.LocalEngine(workers=1), alone=False, progress=False,
        callbacks=[lambda row, state: seen.append(time.process_time())],
    )  # fmt: skip
    return [b - a for a, b in pairwise(seen[1:])]


def row(name: str, repeat: int) -> str:
    model, shape = MODULES[name]
    task, fed = ct.Task(model), data(shape)
    answer = works(task, fed)
    if answer != "yes":
        return f"| {name} | {answer} | | |"
    loop = min(loop_seconds(task, fed) for _ in range(repeat + 1))
    ours = min(second for _ in range(repeat) for second in coterie_seconds(task, fed))
    return f"| {name} | yes | {way(task, fed)} | {loop / ours:.1f} × |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", default="", help="names or parts of names, separated by commas")
    given = parser.parse_args()
    torch.set_num_threads(1)
    wanted = [n for n in MODULES if any(part in n for part in given.only.split(","))]
    lines = ["| module | works | how clients are run | speed against a loop |", "|---|---|---|---|"]
    for name in wanted:
        lines.append(row(name, given.repeat))
        print(lines[-1], flush=True)
    if not given.only:
        before, rest = PAGE.read_text("utf-8").split(MARKS[0])
        after = rest.split(MARKS[1])[1]
        PAGE.write_text(f"{before}{MARKS[0]}\n" + "\n".join(lines) + f"\n{MARKS[1]}{after}", "utf-8")


if __name__ == "__main__":
    main()
