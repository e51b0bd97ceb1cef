"""The works that are timed, and the contenders that do them; needs torch and NumPy (coterie only for its own contender).

A contender is `run(work, rounds, lap, **options)`: it does `rounds` rounds of the same federated averaging and calls `lap`
after each. As a program, `works.py WORK CONTENDER ROUNDS [key=value …]` is one contender in a process of its own: after
every round it prints a line of JSON and waits for a line on its standard input, so that the rounds of several contenders
can be interleaved and each has its own peak memory.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

Lap = Callable[[], None]
LR = 0.1


@dataclass(frozen=True)
class Work:
    """`clients` with `samples` each; mini-batches of `batch` for one epoch, or `steps` full-batch steps."""

    clients: int
    samples: int
    shape: tuple[int, ...]
    model: Callable[[], nn.Module]
    batch: int | None = None
    steps: int = 0

    def data(self) -> tuple[Tensor, Tensor]:
        """(clients, samples, …) features and (clients, samples) classes; random, since only time is measured."""
        draw = torch.Generator().manual_seed(0)
        size = (self.clients, self.samples)
        return torch.randn(*size, *self.shape, generator=draw), torch.randint(0, 10, size, generator=draw)

    def initial(self) -> nn.Module:
        torch.manual_seed(0)
        return self.model()

    def batches(self, x: Tensor, y: Tensor, draw: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """One client's mini-batches: shuffled once, then cut."""
        if self.batch is None:
            return iter([(x, y)] * self.steps)
        order = torch.randperm(len(x), generator=draw)
        return zip(x[order].split(self.batch), y[order].split(self.batch), strict=True)

    def batch_sizes(self) -> list[int]:
        if self.batch is None:
            return [self.samples] * self.steps
        return [min(self.batch, self.samples - i) for i in range(0, self.samples, self.batch)]


def mlp(n_in: int, hidden: int) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(n_in, hidden), nn.ReLU(), nn.Linear(hidden, 10))


def cnn() -> nn.Module:
    """Five layers, 44,426 parameters."""
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )


WORKS = {
    "W1": Work(1000, 50, (60,), mlp(60, 32), batch=10),
    "W2": Work(100, 100, (784,), mlp(784, 100), batch=10),
    "W3": Work(1200, 200, (784,), mlp(784, 200), steps=10),
    "W4": Work(50, 300, (1, 28, 28), cnn, batch=32),
}


# ---- contenders ------------------------------------------------------------------------------------------------------


def loop(work: Work, rounds: int, lap: Lap, threads: int = 1, optimiser: int = 0) -> None:
    """The plain loop: one reused model, ordinary autograd; resets, steps and sums are one fused call each. Without an
    optimiser object, which costs time; `optimiser=1` has the usual one. `threads=0` leaves PyTorch its default."""
    if threads:
        torch.set_num_threads(threads)
    x, y = work.data()
    model = work.initial()
    params = list(model.parameters())
    sgd = torch.optim.SGD(params, LR)
    server = [p.detach().clone() for p in params]
    draw = torch.Generator().manual_seed(0)
    for _ in range(rounds):
        sums = [torch.zeros_like(p) for p in server]
        for client in range(work.clients):
            with torch.no_grad():
                torch._foreach_copy_(params, server)
            for xs, ys in work.batches(x[client], y[client], draw):
                loss = F.cross_entropy(model(xs), ys)
                if optimiser:
                    sgd.zero_grad()
                    loss.backward()
                    sgd.step()
                else:
                    grads = torch.autograd.grad(loss, params)
                    with torch.no_grad():
                        torch._foreach_add_(params, grads, alpha=-LR)
            with torch.no_grad():
                torch._foreach_add_(sums, params)
        server = [s / work.clients for s in sums]
        lap()


def products(work: Work, rounds: int, lap: Lap, batched: int = 1) -> None:
    """Only the dense matrix products of the forward and backward pass, in the shapes one client has (convolutions as the
    products they are equal to), into buffers that are made once and stay in the cache: the floor of any method that
    does these operations. `batched` clients at a time in one call, each with operands of its own."""
    torch.set_num_threads(1)
    sizes = work.batch_sizes()
    plans = {size: _operands(work, size, batched) for size in set(sizes)}
    for _ in range(rounds):
        for _ in range(work.clients // batched):
            for size in sizes:
                for a, b, out in plans[size]:
                    torch.matmul(a, b, out=out)
        lap()


def _operands(work: Work, size: int, batched: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """(a, b, out) of every product in one step with `size` samples."""
    lead = (batched,) if batched > 1 else ()
    triples, x, first = [], torch.zeros(size, *work.shape), True
    for layer in work.initial():
        x = layer(x)
        if isinstance(layer, nn.Linear | nn.Conv2d):
            n, k = layer.weight.flatten(1).shape
            m = x.numel() // n
            inputs, weight, delta = (torch.randn(*lead, *s) for s in ((m, k), (n, k), (m, n)))
            triples.append((inputs, weight.mT, torch.empty(*lead, m, n)))  # forward
            triples.append((delta.mT, inputs, torch.empty(*lead, n, k)))  # gradient by the weights
            if not first:
                triples.append((delta, weight, torch.empty(*lead, m, k)))  # gradient by the inputs
            first = False
    return triples


def coterie(work: Work, rounds: int, lap: Lap, workers: int = 1, engine: str = "local") -> None:
    import coterie as ct

    x, y = work.data()
    federation = ct.Federation.from_flat(
        x.flatten(0, 1).numpy(),
        y.flatten().numpy(),
        sizes=np.full(work.clients, work.samples),
        clients=range(work.clients),
        n_test=np.zeros(work.clients, np.int64),
        one_class="allow",
    )
    del x, y
    steps: dict[str, Any] = {"epochs": 1} if work.batch else {"steps": work.steps}
    ct.fit(
        ct.FedAvg(ct.LocalSGD(lr=LR, batch_size=work.batch, **steps)),
        federation,
        ct.Task(work.model),
        rounds=rounds,
        engine=ct.engines.LocalEngine(workers=workers) if engine == "local" else ct.engines.RayEngine(actors=workers),
        alone=False,
        progress=False,
        callbacks=[lambda row, state: lap()],
    )


# ---- one contender as a program --------------------------------------------------------------------------------------


class Stopwatch:
    """Prints the time since the last call ended, then waits for permission to go on."""

    def __init__(self) -> None:
        self.wall, self.cpu = time.perf_counter(), cpu_seconds()

    def __call__(self) -> None:
        wall, cpu = time.perf_counter() - self.wall, cpu_seconds() - self.cpu
        print(json.dumps({"wall": wall, "cpu": cpu, "peak_mb": peak_megabytes()}), flush=True)
        sys.stdin.readline()
        self.wall, self.cpu = time.perf_counter(), cpu_seconds()


def cpu_seconds() -> float:
    """Of this process with its threads, and of the processes it started (these to 10 ms)."""
    ticks = sum(sum(map(int, stat[11:15])) for stat in started().values())  # own and reaped children's, user and system
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime + ticks / os.sysconf("SC_CLK_TCK")


def peak_megabytes() -> float:
    """Sum of the peaks of this process and those it started; memory they share counts more than once."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for pid in started():
        with suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text().split()
            peak += int(status[status.index("VmHWM:") + 1]) if "VmHWM:" in status else 0
    return peak / 1024


def started() -> dict[int, list[str]]:
    """The living processes that descend from this one, each with the fields of its `/proc/…/stat` after the name."""
    stats = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            stats[int(file.parent.name)] = file.read_text().rpartition(")")[2].split()
    found, new = set(), {os.getpid()}
    while new:
        new = {pid for pid, stat in stats.items() if int(stat[1]) in new} - found
        found |= new
    return {pid: stats[pid] for pid in found}


def main(name: str, contender: str, rounds: str, *options: str) -> None:
    os.environ["BENCH_WORK"] = name  # for a contender's own processes
    settings = dict(option.split("=") for option in options)
    work = WORKS[name]
    if "clients" in settings:
        work = replace(work, clients=int(settings.pop("clients")))
    module, _, function = contender.rpartition(":")
    run = getattr(importlib.import_module(module), function) if module else globals()[function]
    run(work, int(rounds), Stopwatch(), **{k: int(v) if v.isdigit() else v for k, v in settings.items()})


if __name__ == "__main__":
    main(*sys.argv[1:])
