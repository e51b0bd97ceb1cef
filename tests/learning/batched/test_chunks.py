"""Primitives reach their rule directly under the engine's `vmap`, and by torch's own way elsewhere: the same numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from coterie.learning.batched.chunks import apply, in_chunk, in_one_vmap
from coterie.learning.batched.forward_and_back import joined


class Scaled(torch.autograd.Function):
    """x · factor, with the mean over the chunk's clients beside it: something that only a rule can see."""

    @staticmethod
    def forward(factor: float, x: Tensor) -> Any:
        return factor * x, x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.factor = inputs[0]

    @staticmethod
    def backward(ctx: Any, by_scaled: Tensor, by_mean: Tensor) -> Any:
        return None, ctx.factor * by_scaled

    @staticmethod
    def rule(factor: float, x: Tensor) -> Any:
        return factor * x, x.mean(0, keepdim=True).expand_as(x)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *given: Any) -> Any:
        return Scaled.rule(*in_chunk(info, in_dims, given)), (0, 0)


X = torch.arange(6.0).reshape(3, 2)


@pytest.mark.parametrize("dim", [0, 1])
def test_the_rule_sees_the_whole_chunk_and_torch_is_not_asked(dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = torch.func.vmap(lambda x: Scaled.apply(2.0, x), in_dims=dim)(X)  # type: ignore[no-untyped-call]
    monkeypatch.setattr(Scaled, "apply", None)
    quick = torch.func.vmap(lambda x: apply(Scaled, 2.0, x), in_dims=dim)(X)
    torch.testing.assert_close(quick, slow)
    shared = torch.func.vmap(lambda _: apply(Scaled, 2.0, X[0]))(X)  # the same for all clients
    torch.testing.assert_close(shared[1], X[:1].expand(3, 2))


def test_without_the_engine_and_under_a_derivative_it_is_torchs_own() -> None:
    assert not in_one_vmap()
    torch.testing.assert_close(apply(Scaled, 3.0, X)[0], 3 * X)
    slope = torch.func.vmap(torch.func.grad(lambda x: apply(Scaled, 3.0, x)[0].sum()))(X)
    torch.testing.assert_close(slope, torch.full_like(X, 3.0))


def test_a_single_group_is_not_copied() -> None:
    assert joined([X]) is X
    torch.testing.assert_close(joined([X[:1], X[1:]]), X)
