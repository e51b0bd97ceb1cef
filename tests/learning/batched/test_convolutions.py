"""Hand-written convolutions against the library's, and the passes that loops of one's own take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import coterie as ct
from coterie.base.tree import Params, flatten
from coterie.learning.batched import forward_and_back
from coterie.learning.batched.gradients import Model, chunk_gradients, pullback

CLIENTS, SAMPLES = 3, 4
KEYS = torch.zeros(CLIENTS, dtype=torch.int64)  # random keys: nothing here draws


def dense(n_in: int) -> list[nn.Module]:
    return [nn.Flatten(), nn.Linear(n_in, 6), nn.Tanh(), nn.Linear(6, 3)]


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, int, int]]] = {
    "pool after the activation": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2), *dense(27)),
        (2, 8, 9),
    ),
    "activation after the pool": (
        lambda: nn.Sequential(nn.Conv2d(1, 3, 3), nn.MaxPool2d(2), nn.Sigmoid(), *dense(27)),
        (1, 8, 8),
    ),
    "pools of three with a rest": (lambda: nn.Sequential(nn.Conv2d(1, 2, 2), nn.MaxPool2d(3), *dense(8)), (1, 8, 9)),
    "no pool, padding, a stride": (
        lambda: nn.Sequential(nn.Conv2d(1, 2, (3, 2), stride=2, padding=(1, 0)), nn.Tanh(), *dense(24)),
        (1, 8, 7),
    ),
    "a stride and a pool": (
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3, stride=2, padding=1), nn.MaxPool2d(2), nn.ReLU(), *dense(8)),
        (1, 8, 8),
    ),
    "two, without biases": (
        lambda: nn.Sequential(
            *(nn.Conv2d(1, 3, 3, bias=False), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 2, 2, padding=1), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(50, 3, bias=False)),
        ),
        (1, 10, 10),
    ),
}
LEFT = {
    "groups": lambda: nn.Sequential(nn.Conv2d(2, 2, 3, groups=2), *dense(72)),
    "dilation": lambda: nn.Sequential(nn.Conv2d(2, 2, 2, dilation=2), *dense(72)),
    "pools that overlap": lambda: nn.Sequential(nn.Conv2d(2, 2, 3), nn.MaxPool2d(2, stride=1), *dense(50)),
    "mean pooling": lambda: nn.Sequential(nn.Conv2d(2, 2, 3), nn.AvgPool2d(2), *dense(18)),
    "a heavy network": lambda: nn.Sequential(nn.Conv2d(2, 600, 3), *dense(21_600)),
}


def stacked(task: ct.Task) -> Params:
    models = [task.init(seed, torch.float64) for seed in range(CLIENTS)]
    return {name: torch.stack([m[name] for m in models]) for name in models[0]}


def data(shape: tuple[int, int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Half of every picture is blank, so that pools meet equal values."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(CLIENTS, SAMPLES, *shape, generator=draw, dtype=torch.float64)
    x[..., : shape[1] // 2, :] = 0
    weight = torch.rand(CLIENTS, SAMPLES, generator=draw, dtype=torch.float64)
    return x, torch.randint(0, 3, (CLIENTS, SAMPLES), generator=draw), weight


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_are_those_of_the_library(name: str) -> None:
    make, shape = NETWORKS[name]
    task = ct.Task(make)
    params, (x, y, weight) = stacked(task), data(shape)
    model = Model(task, tuple(params), tuple(range(len(params))))
    network = model.network(x)
    assert network is not None
    ours = chunk_gradients(model, network, list(params.values()), x, y, weight, KEYS)
    theirs = chunk_gradients(model, None, list(params.values()), x, y, weight, KEYS)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    part = Model(task, tuple(params), (0,))  # the first kernel alone
    only = chunk_gradients(part, network, list(params.values()), x, y, weight, KEYS)
    torch.testing.assert_close(only[1][0], theirs[1][0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_to_the_library(name: str) -> None:
    task = ct.Task(LEFT[name])
    assert task.network(tuple(task.init(0)), torch.Size((2, 8, 8))) is None


def mapped(task: ct.Task, one: Callable[..., Any], params: Params, x: Tensor) -> tuple[Any, Any]:
    """A client function on a chunk, and on each client with the module itself."""
    alone = [one({name: t[c] for name, t in params.items()}, x[c]) for c in range(CLIENTS)]
    return torch.func.vmap(one)(params, x), alone


@pytest.mark.parametrize("name", ["two, without biases", "no pool, padding, a stride"])
@pytest.mark.parametrize("how", ["outputs", "gradient", "pullback", "by the pictures", "curvature"])
def test_passes_of_a_loop(name: str, how: str) -> None:
    """Values, first derivatives (by parameters: written by hand; by pictures: not) and second ones."""
    make, shape = NETWORKS[name]
    task = ct.Task(make)
    params, (x, _, _) = stacked(task), data(shape)

    def bend(params: Params, x: Tensor) -> Tensor:
        return (task.outputs(params, x) ** 3).sum()

    def pulled(params: Params, x: Tensor) -> Params:
        z, back = pullback(task, params, x, KEYS[0])
        return back(3 * z**2)

    def curvature(params: Params, x: Tensor) -> Params:
        first = torch.func.grad(lambda p: torch.func.grad(bend)(p, x)["0.weight"].square().sum())
        return first(params)  # type: ignore[no-any-return]

    ways: dict[str, Callable[..., Any]] = {
        "outputs": task.outputs,
        "gradient": torch.func.grad(bend),
        "pullback": pulled,
        "by the pictures": torch.func.grad(bend, argnums=1),
        "curvature": curvature,
    }
    together, alone = mapped(task, ways[how], params, x)
    for c in range(CLIENTS):
        mine = {k: t[c] for k, t in together.items()} if isinstance(together, dict) else together[c]
        torch.testing.assert_close(mine, alone[c], rtol=1e-10, atol=1e-12)
    assert any(t.abs().max() > 1e-3 for t in (together.values() if isinstance(together, dict) else [together]))


def test_large_passes_are_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass that would hold too much keeps nothing, and the way back is the same."""
    make, shape = NETWORKS["two, without biases"]
    task = ct.Task(make)
    params, (x, _, _) = stacked(task), data(shape)
    network = task.network(tuple(params), x.shape[2:])
    assert network is not None
    results = []
    for limit in (forward_and_back._MOST, 0):
        monkeypatch.setattr(forward_and_back, "_MOST", limit)
        monkeypatch.setattr(forward_and_back, "_BYTES", limit)
        kept = forward_and_back.Pass(network)
        z = kept.forward(x, list(params.values()))
        results.append((z, kept.backward(z)))
        assert (kept.kept[0][2] is None) == (limit == 0)
    torch.testing.assert_close(results[0], results[1], rtol=1e-12, atol=1e-12)
    z = forward_and_back.outputs_only(network, x, list(params.values()))
    torch.testing.assert_close(z, results[0][0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("algorithm", [ct.FedAvg, ct.AdaPeD, ct.PFedMe, ct.FedEM, ct.APFL])
def test_chunks_do_not_change_convolutions(algorithm: Callable[..., Any]) -> None:
    """Bit-identical in chunks of one, two and all; the plain engine, which uses the module, agrees up to rounding."""
    draw, sizes = np.random.default_rng(0), np.array([9, 7, 12, 5])
    x, y = draw.random((sizes.sum(), 1, 10, 10)), draw.integers(0, 3, sizes.sum())
    fed = ct.Federation.from_flat(x, y, sizes=sizes, clients=range(4), n_test=sizes * 0 + 2, one_class="allow")
    task = ct.Task(NETWORKS["two, without biases"][0])
    method = algorithm(local=ct.LocalSGD(steps=3, lr=0.2, batch_size=2))
    engines = [*(ct.engines.LocalEngine(chunk=c, workers=1) for c in (None, 1, 2)), ct.engines.LoopEngine()]
    runs = [ct.fit(method, fed, task, rounds=2, engine=e, alone=False, progress=False) for e in engines]
    first, *others, plain = [
        flatten({"model": run.state.models if algorithm is ct.FedEM else run.state.model}) for run in runs
    ]
    for other in others:
        assert all(torch.equal(first[k], other[k]) for k in first)
    torch.testing.assert_close(first, plain, rtol=2e-5, atol=2e-5)
