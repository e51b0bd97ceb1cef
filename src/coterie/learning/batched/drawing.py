"""Random numbers that a network draws while it is trained, taken from the client's own stream.

`Drawing` stands between a network and torch's functions: dropout of every kind, attention and recurrent layers with
dropout, and plain draws (`torch.rand`, `bernoulli_`, …, as stochastic depth makes them) use numbers made from a key. They
are the same on every engine and after a resume, and do not depend on other clients. The global generator is never used; a
network that uses it in another way is refused before training (`Task.check`).

Numbers are laid out row by row: a sample's draws depend on its place in the batch and not on how many follow it, as long as
the batch comes first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from coterie.base import randomness
from coterie.errors import TaskError


class Drawing(TorchFunctionMode):
    """Inside this context a network's random numbers are a function of the key and of the number of earlier draws."""

    def __init__(self, key: Tensor) -> None:
        super().__init__()
        self.key, self.count = key, 0
        self.used = False  # whether any function of torch was replaced here

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        ours = _OURS.get(func)
        if ours is None:
            return func(*args, **(kwargs or {}))
        self.used = self.used or func not in _RECURRENT
        return ours(self, *args, **(kwargs or {}))

    def next_key(self) -> Tensor:
        self.count += 1
        return randomness.fold(self.key, "network", self.count)

    def keep(self, share: float, shape: Sequence[int]) -> Tensor:
        """True with probability `share`."""
        words = randomness.bits(self.next_key(), math.prod(shape))
        most = round((share - 0.5) * 2.0**64)
        kept = torch.ones_like(words, dtype=torch.bool) if most >= 1 << 63 else words < most
        return kept.reshape(tuple(shape))

    def uniform(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return randomness.uniform(self.next_key(), math.prod(shape), dtype).reshape(tuple(shape))

    def normal(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return randomness.normal(self.next_key(), math.prod(shape), dtype).reshape(tuple(shape))


# ---- dropout -----------------------------------------------------------------------------------------------------------


def _dropout(draw: Drawing, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return _dropped(draw, input, p, training, input.shape)


def _feature_dropout(
    draw: Drawing, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Whole channels at a time: a number for each of the first two dimensions."""
    return _dropped(draw, input, p, training, input.shape[:2] + (1,) * (input.dim() - 2))


def _dropped(draw: Drawing, input: Tensor, p: float, training: bool, shape: Sequence[int]) -> Tensor:
    if not training or p == 0:
        return input
    kept = draw.keep(1 - p, shape).to(input.dtype)
    return input * (kept if p == 1 else kept / (1 - p))


def _alpha_dropout(
    draw: Drawing, input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    return _to_alpha(draw, input, p, training, input.shape)


def _feature_alpha_dropout(
    draw: Drawing, input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> Tensor:
    return _to_alpha(draw, input, p, training, input.shape[:2] + (1,) * (input.dim() - 2))


def _to_alpha(draw: Drawing, input: Tensor, p: float, training: bool, shape: Sequence[int]) -> Tensor:
    """Klambauer et al., "Self-Normalizing Neural Networks", https://arxiv.org/abs/1706.02515, Section 3: dropped values
    become −λα, and an affine map keeps mean and variance."""
    if not training or p == 0:
        return input
    low = -1.0507009873554804934193349852946 * 1.6732632423543772848170429916717
    scale = ((1 - p) * (1 + p * low**2)) ** -0.5
    kept = draw.keep(1 - p, shape)
    dropped: Tensor = torch.where(kept, input, low) * scale - scale * low * p
    return dropped


# ---- attention ---------------------------------------------------------------------------------------------------------


def _attention(
    draw: Drawing,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(QKᵀ/√d + mask)·V in plain products, which can be batched over clients and draw no random numbers."""
    if enable_gqa:
        key, value = (t.repeat_interleave(query.shape[-3] // t.shape[-3], -3) for t in (key, value))
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
    return _dropout(draw, scores.softmax(-1), dropout_p) @ value


def _multi_head(draw: Drawing, *args: Any, **kwargs: Any) -> Any:
    """torch's own function, with its two drawing parts replaced."""
    own = F.multi_head_attention_forward
    parts = {
        "has_torch_function": lambda _: False,
        "dropout": lambda *a, **k: _dropout(draw, *a, **k),
        "scaled_dot_product_attention": lambda *a, **k: _attention(draw, *a, **k),
    }
    body = FunctionType(own.__code__, {**vars(F), **parts}, own.__name__, own.__defaults__, own.__closure__)
    body.__kwdefaults__ = own.__kwdefaults__
    return body(*args, **kwargs)


# ---- recurrent layers --------------------------------------------------------------------------------------------------


def _recurrent(func: Any) -> Callable[..., Any]:
    def run(draw: Drawing, *args: Any) -> Any:
        packed = not isinstance(args[3], bool)  # (data, batch sizes, start, weights, …): one place further
        biases, layers, dropout, training, both, *first = args[4 if packed else 3 :]
        if not training or not dropout or layers == 1:
            return func(*args)
        if packed:
            raise TaskError(
                "A recurrent layer's own dropout works on whole sequences; got packed ones. Pad them, or use dropout=0."
            )
        draw.used = True
        x, start, weights = args[:3]
        per, ways = len(weights) // layers, 2 if both else 1
        ends: list[Any] = []
        for i in range(layers):
            here = slice(i * ways, (i + 1) * ways)
            at = tuple(t[here] for t in start) if isinstance(start, tuple | list) else start[here]
            part = list(weights[i * per : (i + 1) * per])
            x, *end = func(x, at, part, biases, 1, 0.0, training, both, *first)
            ends.append(end)
            x = _dropout(draw, x, dropout) if i < layers - 1 else x
        return (x, *(torch.cat(column) for column in zip(*ends, strict=True)))

    return run


# ---- plain draws -------------------------------------------------------------------------------------------------------


def _shape(sizes: Sequence[Any]) -> tuple[int, ...]:
    given: Iterable[Any] = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], Iterable) else sizes
    return tuple(int(s) for s in given)


def _dtype(options: dict[str, Any], like: Tensor | None = None) -> torch.dtype:
    usual = torch.get_default_dtype() if like is None else like.dtype
    dtype: torch.dtype = options.get("dtype") or usual
    return dtype


def _bernoulli(draw: Drawing, input: Tensor, p: float | None = None, **_: Any) -> Tensor:
    share = input if p is None else p
    return (draw.uniform(input.shape, input.dtype) < share).to(input.dtype)


def _normal(draw: Drawing, mean: Any, std: Any = 1.0, size: Any = None, **options: Any) -> Tensor:
    like = mean + 0 * std
    shape, dtype = (like.shape, like.dtype) if size is None else (_shape((size,)), _dtype(options))
    drawn: Tensor = mean + std * draw.normal(shape, dtype)
    return drawn


def _integers(draw: Drawing, *given: Any, **options: Any) -> Tensor:
    """torch.randint: (high, size) or (low, high, size)."""
    given = (*given, *(options[name] for name in ("low", "high", "size") if name in options))
    low, high, size = given if len(given) == 3 else (0, *given)
    return _between(draw, low, high, _shape((size,))).to(options.get("dtype") or torch.int64)


def _between(draw: Drawing, low: int, high: int, shape: Sequence[int]) -> Tensor:
    return low + (draw.uniform(shape, torch.float64) * (high - low)).floor().to(torch.int64)


_RECURRENT = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)
_OURS: dict[Any, Callable[..., Any]] = {
    F.dropout: _dropout,
    torch.dropout: _dropout,
    F.alpha_dropout: _alpha_dropout,
    F.feature_alpha_dropout: _feature_alpha_dropout,
    **dict.fromkeys((F.dropout1d, F.dropout2d, F.dropout3d), _feature_dropout),
    F.scaled_dot_product_attention: _attention,
    F.multi_head_attention_forward: _multi_head,
    **{f: _recurrent(f) for f in _RECURRENT},
    torch.rand: lambda d, *sizes, **o: d.uniform(_shape(sizes or (o["size"],)), _dtype(o)),
    torch.randn: lambda d, *sizes, **o: d.normal(_shape(sizes or (o["size"],)), _dtype(o)),
    torch.rand_like: lambda d, t, **o: d.uniform(t.shape, _dtype(o, t)),
    torch.randn_like: lambda d, t, **o: d.normal(t.shape, _dtype(o, t)),
    torch.normal: _normal,
    torch.randint: _integers,
    torch.randint_like: lambda d, t, *ends, **o: _integers(d, *ends, t.shape, **({"dtype": t.dtype} | o)),
    torch.randperm: lambda d, n, **o: d.uniform((n,), torch.float64).argsort().to(o.get("dtype") or torch.int64),
    torch.bernoulli: _bernoulli,
    Tensor.bernoulli: _bernoulli,
    Tensor.bernoulli_: lambda d, t, p=0.5, **_: t.copy_((d.uniform(t.shape, torch.float64) < p).to(t.dtype)),
    Tensor.uniform_: lambda d, t, low=0.0, high=1.0, **_: t.copy_(low + (high - low) * d.uniform(t.shape, t.dtype)),
    Tensor.exponential_: lambda d, t, lambd=1.0, **_: t.copy_(-torch.log1p(-d.uniform(t.shape, t.dtype)) / lambd),
    Tensor.normal_: lambda d, t, mean=0.0, std=1.0, **_: t.copy_(mean + std * d.normal(t.shape, t.dtype)),
}
