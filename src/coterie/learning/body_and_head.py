"""A network as a body, which makes features, and a head, which predicts from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

from coterie.base.tree import Params, named_like
from coterie.errors import ConfigError


def split(params: Params, head: Sequence[str] = ()) -> tuple[Params, Params]:
    """A model's body and its head. `head` names parts of the network, such as ["4"]; by default it is the last layer. A
    network of one layer is all head. `tree.joined` puts both together again."""
    for part in head:
        if not named_like(params, (part,)):
            raise ConfigError(f"A head names parts of the network; got {part!r}, none of {', '.join(params)}.")
    last = next(reversed(params)).rpartition(".")[0]
    own = named_like(params, head or (last,)) if head or last else params
    return {name: t for name, t in params.items() if name not in own}, own


def features(network: nn.Module, params: Params, x: Tensor, head: Sequence[str] = ()) -> Tensor:
    """The inputs of the head for the rows of `x`, one row of numbers each. `head` names parts of the network, as in `split`,
    and the first of them counts; by default it is the last layer: of an `nn.Sequential` its last module, of another network
    the module whose parameters come last."""
    if isinstance(network, nn.Sequential) and not any("." in part.rstrip(".") for part in head):
        body = (
            network[: [name for name, _ in network.named_children()].index(head[0].rstrip("."))]
            if head
            else network[:-1]
        )
        kept = {name: params[name] for name, _ in (*body.named_parameters(), *body.named_buffers()) if name in params}
        values: Tensor = functional_call(body, kept, (x,))
        return values.flatten(1)
    last = head[0].rstrip(".") if head else [name for name, _ in network.named_parameters()][-1].rpartition(".")[0]
    given: list[Tensor] = []

    def notice(_: nn.Module, inputs: tuple[Any, ...]) -> None:
        given.append(inputs[0])

    hook = network.get_submodule(last).register_forward_pre_hook(notice)
    try:
        functional_call(network, params, (x,))
    finally:
        hook.remove()
    if not given:
        raise ConfigError(
            f"Features are what enters {last!r}, and this network never calls that part. Name a head that is a module of it."
        )
    return given[-1].flatten(1)
