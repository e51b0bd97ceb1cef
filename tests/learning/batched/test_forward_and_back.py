"""One pass forward and back, for a chunk of clients and for one client."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call

from coterie.learning.batched import forward_and_back
from coterie.learning.batched.networks import Network


@pytest.mark.parametrize("clients", [0, 3])
def test_outputs_and_their_pullback_are_autograds(clients: int) -> None:
    """0: one client, outside of any map."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    start = {name: p.detach() for name, p in model.named_parameters()}
    network = Network.of(model, tuple(start), "cross_entropy", (4,))
    assert network is not None
    x = torch.randn(max(clients, 1), 5, 4, dtype=torch.float64)
    delta = torch.randn(max(clients, 1), 5, 3, dtype=torch.float64)

    def both(x: torch.Tensor, delta: torch.Tensor) -> tuple[torch.Tensor, ...]:
        z, back = forward_and_back.pullback(network, x, tuple(start.values()))
        return z, *back(delta)

    found = torch.func.vmap(both)(x, delta) if clients else tuple(t[None] for t in both(x[0], delta[0]))
    for i in range(len(x)):
        z, back = torch.func.vjp(lambda p, i=i: functional_call(model, p, (x[i],)), start)
        for mine, theirs in zip(found, (z, *back(delta[i])[0].values()), strict=True):
            torch.testing.assert_close(mine[i], theirs)
