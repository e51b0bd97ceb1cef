"""Nested dictionaries of tensors: the only thing that crosses between server and clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from coterie.errors import ConfigError

Params = dict[str, Tensor]
"""A model: parameter name → tensor. Several models stacked have one more leading dimension."""

Tree = dict[str, Any]
"""A nested dict whose leaves are tensors."""


def tree_map(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Apply a function to every leaf (and the leaves at the same place of other trees)."""
    if isinstance(tree, Mapping):
        return {name: tree_map(function, value, *(o[name] for o in others)) for name, value in tree.items()}
    return function(tree, *others)


def leaves(tree: Any) -> Iterator[Tensor]:
    """The tensors of a tree, in its order."""
    if isinstance(tree, Mapping):
        for value in tree.values():
            yield from leaves(value)
    else:
        yield tree


def named_like(params: Params, parts: Sequence[str]) -> Params:
    """The parameters below one of the dotted `parts` of a network: "0" or "0." has "0.weight" but not "01.weight"."""
    dotted = tuple(part.rstrip(".") + "." for part in parts)
    return {name: t for name, t in params.items() if f"{name}.".startswith(dotted)}


def joined(one: Params, other: Params, like: Params) -> Params:
    """One model from two parts, in the order of `like`; `other` wins where both have a parameter."""
    return {name: other[name] if name in other else one[name] for name in like}


def names(given: str | Iterable[str], owner: str, option: str) -> tuple[str, ...]:
    """One name or several as a tuple."""
    several = (given,) if isinstance(given, str) or not isinstance(given, Iterable) else tuple(given)
    for odd in (name for name in several if not isinstance(name, str)):
        raise ConfigError(f"{owner} needs {option} to be names of parameters, such as ['0.']; got {odd!r}.")
    return several


def flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """`{"a": {"b": t}}` → `{"a/b": t}`; the form in which a checkpoint stores it."""
    if not isinstance(tree, Mapping):
        return {prefix: tree}
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat |= flatten(value, f"{prefix}/{name}" if prefix else str(name))
    return flat


def unflatten(flat: Mapping[str, Any]) -> Tree:
    """The nested dict that `flatten` took apart."""
    tree: Tree = {}
    for path, value in flat.items():
        node = tree
        *parents, name = path.split("/")
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = value
    return tree


def take(tree: Any, index: Tensor) -> Any:
    """Rows of a stacked tree; `index` may be one number (also under vmap, where it is data)."""
    return tree_map(lambda t: t.index_select(0, index.reshape(-1)).reshape(index.shape + t.shape[1:]), tree)


def row(tree: Any, i: int) -> Any:
    """Entry i of the first dimension of every tensor."""
    return tree_map(lambda t: t[i], tree)


def stack(trees: list[Any]) -> Any:
    """Trees of one shape as one tree with a new first dimension."""
    return tree_map(lambda *ts: torch.stack(ts), trees[0], *trees[1:])


def concat(trees: list[Any]) -> Any:
    """Trees of one shape joined along the first dimension."""
    return tree_map(lambda *ts: torch.cat(ts), trees[0], *trees[1:])


def repeat(tree: Any, count: int) -> Any:
    """The same tree `count` times, stacked."""
    return tree_map(lambda t: t.unsqueeze(0).expand(count, *t.shape).clone(), tree)


def n_bytes(tree: Any) -> int:
    """How many bytes the tensors take."""
    return sum(t.numel() * t.element_size() for t in leaves(tree))


def flat_vector(tree: Any, batch_dims: int = 0) -> Tensor:
    """All numbers of a model in one row: (…batch, P)."""
    return torch.cat([t.reshape(*t.shape[:batch_dims], -1) for t in leaves(tree)], dim=batch_dims)


def like_vector(vector: Tensor, tree: Any, batch_dims: int = 0) -> Any:
    """Inverse of `flat_vector`: cut (…batch, P) into tensors shaped like the leaves of `tree` (without batch)."""
    pieces = iter(torch.split(vector, [t.numel() for t in leaves(tree)], dim=batch_dims))
    return tree_map(lambda t: next(pieces).reshape(vector.shape[:batch_dims] + t.shape), tree)


def finite_rows(stacked: Any) -> Tensor:
    """For each row of a tree of stacked tensors, whether all its numbers are finite (without rows: one True)."""
    good = torch.ones(next((len(t) for t in leaves(stacked)), 1), dtype=torch.bool)
    for t in leaves(stacked):
        if t.is_floating_point() and t.numel():
            flat = t.reshape(len(t), -1)
            doubt = ~torch.isfinite(flat.sum(1))  # a sum may overflow although its parts are finite
            if bool(doubt.any()):
                good[doubt] &= torch.isfinite(flat[doubt]).all(1)
    return good
