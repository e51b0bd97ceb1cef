"""A round of every personal method against the same method written as a loop over clients in plain PyTorch.

`python benchmarks/bench_priors.py [--repeat 3] [--only AdaPeD]`: FEMNIST's sizes (22 clients of 300 pictures, the five-layer
network, 10 steps on batches of 5; random pixels). One worker, one thread; contenders take turns; medians of CPU seconds.
Loops are written as one would: a module, `torch.optim.SGD`, `loss.backward()`, no pass forward the method does not name.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import coterie as ct

CLIENTS, SAMPLES, STEPS, BATCH, LR = 22, 300, 10, 5, 0.1
LOCAL = ct.LocalSGD(steps=STEPS, lr=LR, batch_size=BATCH)
Loop = Callable[[nn.Module, nn.Module, Tensor, Tensor], None]


def divergence(teacher: Tensor, student: Tensor) -> Tensor:
    return F.kl_div(F.log_softmax(student, -1), F.log_softmax(teacher, -1), reduction="batchmean", log_target=True)


def batches(x: Tensor, y: Tensor, steps: int = STEPS) -> Any:
    order = torch.randperm(len(x))[: steps * BATCH]
    return zip(x[order].split(BATCH), y[order].split(BATCH), strict=True)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), LR)


def step(optimiser: torch.optim.Optimizer, loss: Tensor) -> None:
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()


def fedavg(common: nn.Module, own: nn.Module, x: Tensor, y: Tensor, pull: float = 0.0) -> None:
    start, optimiser = [p.detach().clone() for p in common.parameters()], sgd(common)
    for xs, ys in batches(x, y):
        loss = F.cross_entropy(common(xs), ys)
        if pull:
            loss = loss + pull / 2 * sum(((p - s) ** 2).sum() for p, s in zip(common.parameters(), start, strict=True))
        step(optimiser, loss)


def scaffold(common: nn.Module, own: nn.Module, x: Tensor, y: Tensor) -> None:
    start, optimiser = [p.detach().clone() for p in common.parameters()], sgd(common)
    for xs, ys in batches(x, y):
        optimiser.zero_grad()
        F.cross_entropy(common(xs), ys).backward()
        for p, c in zip(common.parameters(), own.parameters(), strict=True):
            p.grad += c.detach() - c.detach()
        optimiser.step()
    with torch.no_grad():
        for p, s, c in zip(common.parameters(), start, own.parameters(), strict=True):
            c.copy_((s - p) / (STEPS * LR))


def adaped(common: nn.Module, own: nn.Module, x: Tensor, y: Tensor) -> None:
    psi, first, second = 4.0, sgd(own), sgd(common)
    for xs, ys in batches(x, y):
        with torch.no_grad():
            teacher = common(xs)
        student = own(xs)
        step(first, F.cross_entropy(student, ys) + divergence(teacher, student) / (2 * psi))
        with torch.no_grad():
            student = own(xs)
        step(second, divergence(common(xs), student) / (2 * psi))
        with torch.no_grad():
            psi = max(psi - 0.03 * (1 / (2 * psi) - float(divergence(common(xs), student)) / (2 * psi**2)), 0.5)


def quped(common: nn.Module, own: nn.Module, x: Tensor, y: Tensor) -> None:
    first, second = sgd(own), sgd(common)
    for xs, ys in batches(x, y):
        with torch.no_grad():
            teacher = common(xs)
        student = own(xs)
        step(first, 0.75 * F.cross_entropy(student, ys) + 0.25 * divergence(teacher, student))
        with torch.no_grad():
            student = own(xs)
        step(second, 0.25 * divergence(common(xs), student))


def mutual(common: nn.Module, own: nn.Module, x: Tensor, y: Tensor) -> None:
    first, second = sgd(own), sgd(common)
    for xs, ys in batches(x, y):
        a, b = own(xs), common(xs)
        step(first, 0.25 * F.cross_entropy(a, ys) + 0.75 * divergence(b.detach(), a))
        step(second, 0.25 * F.cross_entropy(b, ys) + 0.75 * divergence(a.detach(), b))


def apfl(common: nn.Module, own: nn.Module, x: Tensor, y: Tensor) -> None:
    mixed, optimiser = copy.deepcopy(common), sgd(common)
    for xs, ys in batches(x, y):
        with torch.no_grad():
            for m, v, w in zip(mixed.parameters(), own.parameters(), common.parameters(), strict=True):
                m.copy_(0.5 * v + 0.5 * w)
        mixed.zero_grad()
        F.cross_entropy(mixed(xs), ys).backward()
        step(optimiser, F.cross_entropy(common(xs), ys))
        with torch.no_grad():
            for m, v in zip(mixed.parameters(), own.parameters(), strict=True):
                v -= LR * 0.5 * m.grad


def pfedme(common: nn.Module, own: nn.Module, x: Tensor, y: Tensor) -> None:
    optimiser = sgd(own)
    for xs, ys in batches(x, y):
        for _ in range(3):
            near = sum(
                ((p - w.detach()) ** 2).sum() for p, w in zip(own.parameters(), common.parameters(), strict=True)
            )
            step(optimiser, F.cross_entropy(own(xs), ys) + 0.25 * near)
        with torch.no_grad():
            for p, w in zip(own.parameters(), common.parameters(), strict=True):
                w -= LR * 0.5 * (w - p)


def perfedavg(common: nn.Module, own: nn.Module, x: Tensor, y: Tensor) -> None:
    ahead = copy.deepcopy(common)
    for (xs, ys), (xt, yt) in zip(batches(x, y), batches(x, y), strict=True):
        ahead.load_state_dict(common.state_dict())
        step(torch.optim.SGD(ahead.parameters(), 0.01), F.cross_entropy(ahead(xs), ys))
        ahead.zero_grad()
        F.cross_entropy(ahead(xt), yt).backward()
        with torch.no_grad():
            for w, u in zip(common.parameters(), ahead.parameters(), strict=True):
                w -= LR * u.grad


def fedrep(common: nn.Module, own: nn.Module, x: Tensor, y: Tensor) -> None:
    head = list(common[-1].parameters())  # type: ignore[index]
    body = list(common.parameters())[: -len(head)]
    for part, rest in ((head, body), (body, head)):
        for p in rest:
            p.requires_grad_(False)
        optimiser = torch.optim.SGD(part, LR)
        for xs, ys in batches(x, y):
            step(optimiser, F.cross_entropy(common(xs), ys))
        for p in rest:
            p.requires_grad_(True)


def fedem(common: nn.Module, own: nn.Module, x: Tensor, y: Tensor) -> None:
    models, optimisers = (common, own), (sgd(common), sgd(own))
    with torch.no_grad():
        losses = torch.stack([F.cross_entropy(m(x), y, reduction="none") for m in models])
    q = (-losses).softmax(0)
    order = torch.randperm(len(x))[: STEPS * BATCH]
    for rows in order.split(BATCH):
        for m, model in enumerate(models):
            loss = F.cross_entropy(model(x[rows]), y[rows], reduction="none")
            step(optimisers[m], (q[m, rows] * loss).mean())


METHODS: dict[str, tuple[Any, Loop]] = {
    "AdaPeD": (ct.AdaPeD(local=LOCAL, catch_up=0), adaped),
    "QuPeD": (ct.QuPeD(local=LOCAL), quped),
    "MutualLearning": (ct.MutualLearning(local=LOCAL), mutual),
    "APFL": (ct.APFL(local=LOCAL), apfl),
    "PFedMe": (ct.PFedMe(local=LOCAL), pfedme),
    "PerFedAvg": (ct.PerFedAvg(local=LOCAL), perfedavg),
    "FedRep": (ct.FedRep(local=LOCAL), fedrep),
    "FedEM": (ct.FedEM(local=LOCAL), fedem),
    "FedProx": (ct.FedProx(local=LOCAL), lambda c, o, x, y: fedavg(c, o, x, y, 0.01)),
    "Scaffold": (ct.Scaffold(local=LOCAL), scaffold),
    "GaussianPrior": (ct.GaussianPrior(local=LOCAL, learn=False), lambda c, o, x, y: fedavg(c, o, x, y, 0.3)),
}


def compare(name: str, fed: ct.Federation, data: tuple[Tensor, Tensor], repeat: int) -> str:
    algorithm, loop = METHODS[name]
    task, ours, theirs = ct.Task(ct.models.small_cnn()), [], []
    common = task.module(0)
    own = [task.module(1 + i) for i in range(CLIENTS)]
    marks = [time.process_time()]

    def turn(row: dict[str, object], state: object) -> None:
        ours.append(time.process_time() - marks[-1])
        began = time.process_time()
        total = [torch.zeros_like(p) for p in common.parameters()]
        for i in range(CLIENTS):
            mine = copy.deepcopy(common)
            loop(mine, own[i], data[0][i], data[1][i])
            for t, p in zip(total, mine.parameters(), strict=True):
                t += p.detach() / CLIENTS
        theirs.append(time.process_time() - began)
        marks.append(time.process_time())

    engine = ct.engines.LocalEngine(workers=1)
    ct.fit(algorithm, fed, task, rounds=repeat + 1, engine=engine, callbacks=[turn], alone=False, progress=False)
    a, b = statistics.median(ours[1:]), statistics.median(theirs[1:])
    return f"{name:15} coterie {a:6.2f} CPU s, loop {b:6.2f} CPU s, {b / a:5.2f} times as fast"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", choices=METHODS, action="append")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    x = rng.random((CLIENTS * SAMPLES, 1, 28, 28), np.float32)
    y = rng.integers(0, 10, CLIENTS * SAMPLES)
    fed = ct.Federation.from_flat(
        x, y, sizes=np.full(CLIENTS, SAMPLES), clients=range(CLIENTS), n_test=np.zeros(CLIENTS, np.int64)
    )
    data = tuple(torch.from_numpy(t).reshape(CLIENTS, SAMPLES, *t.shape[1:]) for t in (x, y))
    for name in options.only or METHODS:
        print(compare(name, fed, data, options.repeat), flush=True)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
