"""What a loop written by hand in a client function costs against `LocalSGD.fit`: the same steps on the same batches.

    python benchmarks/bench_loops.py [--works W1,W2,W3] [--repeat 7]

Rounds of the contenders are interleaved in one process with one worker, and the first round is left out. Read the ratios.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from works import LR, WORKS, Work, mlp

import coterie as ct
from coterie.base.tree import Params
from coterie.engines.base import ClientStates, Env
from coterie.exchange.messages import Context, Up

CLIENTS = {"W1": 1000, "W2": 100, "W3": 40, "W4": 10, "small": 200}
SMALL = Work(200, 100, (20,), mlp(20, 16), batch=32)
Phase = Callable[..., Up]


def walk(work: Work) -> dict[str, Any]:
    return {"batch_size": work.batch} | ({"epochs": 1} if work.batch else {"steps": work.steps})


def fitted(work: Work) -> Phase:
    local = ct.LocalSGD(lr=LR, **walk(work))
    return lambda ctx, model: Up(send={"model": local.fit(ctx, model)[0]})


def by_hand(work: Work) -> Phase:
    def phase(ctx: Context, model: Params) -> Up:
        for batch in ctx.batches(**walk(work)):
            g = batch.grad(model)
            model = {name: p - LR * g[name] for name, p in model.items()}
        return Up(send={"model": model})

    return phase


def stepped(work: Work) -> Phase:
    def phase(ctx: Context, model: Params) -> Up:
        for batch in ctx.batches(**walk(work)):
            model = batch.descend(model, LR)
        return Up(send={"model": model})

    return phase


def autograd(work: Work) -> Phase:
    """The same with ordinary autograd: what a gradient of one's own costs."""

    def phase(ctx: Context, model: Params) -> Up:
        for batch in ctx.batches(**walk(work)):
            g = torch.func.grad(batch.loss)(model)
            model = {name: p - LR * g[name] for name, p in model.items()}
        return Up(send={"model": model})

    return phase


def with_extra(work: Work) -> Phase:
    local = ct.LocalSGD(lr=LR, **walk(work))
    return lambda ctx, model: Up(send={"model": local.fit(ctx, model, extra=lambda p, b: 0.0 * b.n)[0]})


def corrected(work: Work) -> Phase:
    local = ct.LocalSGD(lr=LR, **walk(work))
    return lambda ctx, model: Up(send={"model": local.fit(ctx, model, correct=model)[0]})


def pulled(work: Work) -> Phase:
    local = ct.LocalSGD(lr=LR, **walk(work))
    return lambda ctx, model: Up(send={"model": local.fit(ctx, model, anchor=model, pull=0.1)[0]})


CONTENDERS = {
    "LocalSGD.fit": fitted,
    "loop with batch.grad": by_hand,
    "loop with batch.descend": stepped,
    "loop with torch.func.grad": autograd,
    "fit(extra=…)": with_extra,
    "fit(correct=…)": corrected,
    "fit(pull=…)": pulled,
}


def environment(work: Work) -> Env:
    x, y = work.data()
    federation = ct.Federation.from_flat(
        x.flatten(0, 1).numpy(),
        y.flatten().numpy(),
        sizes=np.full(work.clients, work.samples),
        clients=range(work.clients),
        n_test=np.zeros(work.clients, np.int64),
        one_class="allow",
    )
    task = ct.Task(work.model)
    return Env(task, federation, task.init(0), 0, states=ClientStates(work.clients, nothing=True))


def measure(work: Work, repeat: int) -> dict[str, list[float]]:
    env, engine = environment(work), ct.engines.LocalEngine(workers=1)
    phases = {name: make(work) for name, make in CONTENDERS.items()}
    asks = {
        name: ct.exchange.Ask(phase, np.arange(work.clients), {"model": env.initial}, reduce=ct.exchange.MeanBy())
        for name, phase in phases.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in asks}
    for _ in range(repeat + 1):
        for name, ask in asks.items():
            start = time.process_time()
            engine.run(ask, env)
            seconds[name].append(time.process_time() - start)
    engine.close()
    return {name: laps[1:] for name, laps in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--works", default="W1,W2,W3,small")
    parser.add_argument("--repeat", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.works.split(","):
        work = SMALL if name == "small" else WORKS[name]
        work = Work(CLIENTS[name], work.samples, work.shape, work.model, work.batch, work.steps)
        seconds = measure(work, options.repeat)
        base = seconds["LocalSGD.fit"]
        print(f"{name}: {work.clients} clients × {work.samples} samples, batch {work.batch or 'all'}")
        for label, laps in seconds.items():
            ratio = statistics.median(a / b for a, b in zip(laps, base, strict=True))
            print(f"  {label:28} {statistics.median(laps):8.3f} CPU s  {ratio:5.2f} × fit")


if __name__ == "__main__":
    main()
