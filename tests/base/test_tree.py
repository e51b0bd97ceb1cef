"""Nested dictionaries of tensors."""

from __future__ import annotations

import torch

from coterie.base import tree

T = {"a": {"w": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2)}, "n": torch.zeros(2, dtype=torch.int64)}


def test_flatten_and_back() -> None:
    flat = tree.flatten(T)
    assert list(flat) == ["a/w", "a/b", "n"]
    again = tree.unflatten(flat)
    assert list(again) == ["a", "n"]
    assert again["a"]["w"] is T["a"]["w"]
    assert tree.flatten({}) == {}


def test_maps_go_by_name_not_by_order() -> None:
    other = {"n": torch.ones(2), "a": {"b": torch.full((2,), 5.0), "w": torch.ones(2, 3)}}
    total = tree.tree_map(torch.add, T, other)
    assert total["a"]["b"].tolist() == [6, 6]
    assert [t.shape for t in tree.leaves(total)] == [(2, 3), (2,), (2,)]


def test_rows() -> None:
    assert tree.row(T, 1)["a"]["w"].tolist() == [3, 4, 5]
    assert tree.take(T, torch.tensor([1, 1, 0]))["a"]["w"][:, 0].tolist() == [3, 3, 0]
    assert tree.take(T, torch.tensor(1))["a"]["w"].tolist() == [3, 4, 5]
    mapped = torch.func.vmap(lambda i: tree.take(T, i)["a"]["w"])(torch.tensor([1, 0]))
    assert mapped[:, 0].tolist() == [3, 0]
    assert tree.concat([T, T])["a"]["w"].shape == (4, 3)
    assert tree.stack([T, T])["a"]["w"].shape == (2, 2, 3)
    copies = tree.repeat(T, 3)
    assert copies["n"].shape == (3, 2)
    copies["n"][0] = 9  # own memory
    assert T["n"].tolist() == [0, 0]


def test_vectors() -> None:
    model = {"w": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([7.0, 8.0])}
    vector = tree.flat_vector(model)
    assert vector.tolist() == [0, 1, 2, 3, 4, 5, 7, 8]
    assert all(
        torch.equal(a, b) for a, b in zip(tree.leaves(tree.like_vector(vector, model)), model.values(), strict=True)
    )
    many = tree.repeat(model, 4)
    assert tree.flat_vector(many, 1).shape == (4, 8)
    again = tree.like_vector(tree.flat_vector(many, 1), model, 1)
    assert torch.equal(again["w"], many["w"])
    assert tree.n_bytes(model) == 32
