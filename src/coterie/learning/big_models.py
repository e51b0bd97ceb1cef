"""Residual networks, a small transformer and an LSTM: the networks that `models` makes by name.

Each keeps the arguments it was made with (`recipe`), so that a saved result can make it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coterie.errors import TaskError

_GROUPS = 8


def _norm(kind: str, channels: int) -> nn.Module:
    if kind not in ("group", "batch"):
        raise TaskError(f"norm is 'group' or 'batch'; got {kind!r}.")
    return nn.BatchNorm2d(channels) if kind == "batch" else nn.GroupNorm(_GROUPS, channels)


class Block(nn.Module):
    """A basic residual block: "Deep Residual Learning for Image Recognition" (He et al., 2015,
    https://arxiv.org/abs/1512.03385); with stochastic depth (Huang et al., 2016, https://arxiv.org/abs/1603.09382), which
    leaves a sample's branch out with probability `drop`."""

    def __init__(self, before: int, after: int, stride: int, norm: str, drop: float) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = _norm(norm, after), _norm(norm, after)
        self.drop = drop
        self.shortcut = nn.Sequential()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), _norm(norm, after))

    def forward(self, x: Tensor) -> Tensor:
        branch = self.norm2(self.second(F.relu(self.norm1(self.first(x)))))
        if self.training and self.drop:
            kept = x.new_empty(len(x), 1, 1, 1).bernoulli_(1 - self.drop)
            branch = branch * kept / (1 - self.drop)
        return F.relu(branch + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(
        self, n_out: int, channels: int, widths: Sequence[int], blocks: int, norm: str = "group", drop: float = 0.0
    ) -> None:
        super().__init__()
        self.recipe = [n_out, channels, list(widths), blocks, norm, drop]
        self.stem = nn.Sequential(
            nn.Conv2d(channels, widths[0], 3, 1, 1, bias=False), _norm(norm, widths[0]), nn.ReLU()
        )
        parts: list[nn.Module] = []
        total, before = len(widths) * blocks, widths[0]
        for stage, width in enumerate(widths):
            for i in range(blocks):
                share = drop * (len(parts) + 1) / total  # grows from block to block, as in the paper
                parts.append(Block(before, width, 2 if stage and not i else 1, norm, share))
                before = width
        self.blocks = nn.Sequential(*parts)
        self.head = nn.Linear(before, n_out)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.blocks(self.stem(x)).mean((2, 3)))
        return out


class Transformer(nn.Module):
    """Embedding with learned positions, encoder layers with the norm first, and a linear layer."""

    later: Tensor

    def __init__(
        self,
        vocabulary: int,
        n_out: int,
        length: int,
        width: int,
        heads: int,
        layers: int,
        dropout: float,
        per_token: bool,
    ) -> None:
        super().__init__()
        self.recipe = [vocabulary, n_out, length, width, heads, layers, dropout, per_token]
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.dropout, self.per_token, self.length = nn.Dropout(dropout), per_token, length
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 4 * width, dropout, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, n_out)
        nn.init.normal_(self.tokens.weight, std=0.02)
        if per_token and n_out == vocabulary:
            self.head.weight = self.tokens.weight
        self.register_buffer("later", torch.ones(length, length, dtype=torch.bool).triu(1), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        if ids.shape[1] > self.length:
            raise TaskError(
                f"This transformer reads {self.length} tokens; got {ids.shape[1]}. Use length={ids.shape[1]}."
            )
        values = self.dropout(self.tokens(ids) + self.places.weight[: ids.shape[1]])
        later = self.later[: ids.shape[1], : ids.shape[1]] if self.per_token else None
        for layer in self.layers:
            values = layer(values, src_mask=later)
        values = self.norm(values)
        out: Tensor = self.head(values if self.per_token else values.mean(1))
        return out


class Recurrent(nn.Module):
    """Embedding, LSTM, linear layer."""

    def __init__(
        self, vocabulary: int, n_out: int, width: int, hidden: int, layers: int, dropout: float, per_token: bool
    ) -> None:
        super().__init__()
        self.recipe = [vocabulary, n_out, width, hidden, layers, dropout, per_token]
        self.tokens = nn.Embedding(vocabulary, width)
        self.body = nn.LSTM(width, hidden, layers, batch_first=True, dropout=dropout)
        self.head, self.per_token = nn.Linear(hidden, n_out), per_token

    def forward(self, ids: Tensor) -> Tensor:
        values = self.body(self.tokens(ids))[0]
        out: Tensor = self.head(values if self.per_token else values[:, -1])
        return out


KINDS: dict[str, Any] = {"ResNet": ResNet, "Transformer": Transformer, "Recurrent": Recurrent}
