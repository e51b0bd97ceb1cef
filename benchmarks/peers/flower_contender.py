"""Flower 1.41: its FedAvg strategy in the Simulation Runtime, one single-thread Ray actor a core."""

from __future__ import annotations

import os
from functools import cache

import ray
import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from works import LR, WORKS, Lap, Work

client = ClientApp()


@cache
def material(name: str) -> tuple:
    """What an actor makes once: everybody's data and one reused model."""
    torch.set_num_threads(1)
    work = WORKS[name]
    return work, *work.data(), work.initial(), torch.Generator().manual_seed(0)


@client.train()
def train(message: Message, context: Context) -> Message:
    work, x, y, model, draw = material(os.environ["BENCH_WORK"])
    me = int(context.node_config["partition-id"])
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    params = list(model.parameters())
    for xs, ys in work.batches(x[me], y[me], draw):
        grads = torch.autograd.grad(F.cross_entropy(model(xs), ys), params)
        with torch.no_grad():
            torch._foreach_add_(params, grads, alpha=-LR)
    reply = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": work.samples})}
    return Message(content=RecordDict(reply), reply_to=message)


def run(work: Work, rounds: int, lap: Lap, workers: int = 2) -> None:
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        def evaluate(round_: int, arrays: ArrayRecord) -> None:
            if round_:
                lap()

        strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=work.clients)
        strategy.start(grid, ArrayRecord(work.initial().state_dict()), num_rounds=rounds, evaluate_fn=evaluate)

    run_simulation(
        server,
        client,
        num_supernodes=work.clients,
        backend_config={
            "client_resources": {"num_cpus": 1.0, "num_gpus": 0.0},
            "init_args": {"num_cpus": workers, "log_to_driver": False, "include_dashboard": False},
        },
    )
    ray.shutdown()
