"""Ready-made model factories: `Task(model=models.mlp(784, 200, 10))`. A factory can be pickled and copied.

The papers' networks are plain `nn.Sequential`s; residual networks, the transformer and the LSTM are in `big_models`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Literal

from torch import nn

from coterie.base.annotations import guarded
from coterie.base.arguments import Share
from coterie.learning.big_models import Recurrent, ResNet, Transformer

Factory = Callable[[], nn.Module]
Norm = Literal["group", "batch"]


def _sequential(*recipe: tuple[type[nn.Module], tuple[object, ...]]) -> Factory:
    """Layers by class and arguments, made when the factory is called."""
    return partial(_made, recipe)


def _made(recipe: tuple[tuple[type[nn.Module], tuple[object, ...]], ...]) -> nn.Module:
    return nn.Sequential(*(layer(*arguments) for layer, arguments in recipe))


@guarded
def linear(n_in: int, n_out: int) -> Factory:
    """Linear or (multinomial) logistic regression."""
    return _sequential((nn.Flatten, ()), (nn.Linear, (n_in, n_out)))


@guarded
def mlp(n_in: int, hidden: int | tuple[int, ...], n_out: int) -> Factory:
    """Fully connected ReLU network."""
    widths = (n_in, *((hidden,) if isinstance(hidden, int) else hidden))
    layers = [part for a, b in pairwise(widths) for part in ((nn.Linear, (a, b)), (nn.ReLU, ()))]
    return _sequential((nn.Flatten, ()), *layers, (nn.Linear, (widths[-1], n_out)))


@guarded
def small_cnn(n_out: int = 10, channels: int = 1, side: int = 28) -> Factory:
    """Five layers: conv 5×5 (6), conv 5×5 (16), fully connected 120-84-out; 44,426 parameters on 28×28 and ten classes."""
    flat = 16 * (((side - 4) // 2 - 4) // 2) ** 2
    return _sequential(
        *((nn.Conv2d, (channels, 6, 5)), (nn.ReLU, ()), (nn.MaxPool2d, (2,))),
        *((nn.Conv2d, (6, 16, 5)), (nn.ReLU, ()), (nn.MaxPool2d, (2,)), (nn.Flatten, ())),
        *((nn.Linear, (flat, 120)), (nn.ReLU, ()), (nn.Linear, (120, 84)), (nn.ReLU, ()), (nn.Linear, (84, n_out))),
    )


@guarded
def lenet5(n_out: int = 10, channels: int = 1, side: int = 28) -> Factory:
    """LeNet-5 with tanh and max-pooling; the first convolution pads by 2."""
    flat = 16 * ((side // 2 - 4) // 2) ** 2
    return _sequential(
        *((nn.Conv2d, (channels, 6, 5, 1, 2)), (nn.Tanh, ()), (nn.MaxPool2d, (2,))),
        *((nn.Conv2d, (6, 16, 5)), (nn.Tanh, ()), (nn.MaxPool2d, (2,)), (nn.Flatten, ())),
        *((nn.Linear, (flat, 120)), (nn.Tanh, ()), (nn.Linear, (120, 84)), (nn.Tanh, ()), (nn.Linear, (84, n_out))),
    )


@guarded
def two_conv(n_out: int, channels: int = 3, side: int = 32, width: int = 64, hidden: int = 128) -> Factory:
    """IFCA's image network: two convolutions with max-pooling, two fully connected layers."""
    flat = 2 * width * (side // 4) ** 2
    return _sequential(
        *((nn.Conv2d, (channels, width, 5, 1, 2)), (nn.ReLU, ()), (nn.MaxPool2d, (2,))),
        *((nn.Conv2d, (width, 2 * width, 5, 1, 2)), (nn.ReLU, ()), (nn.MaxPool2d, (2,)), (nn.Flatten, ())),
        *((nn.Linear, (flat, hidden)), (nn.ReLU, ()), (nn.Linear, (hidden, n_out))),
    )


@guarded
def resnet8(n_out: int = 10, channels: int = 3, norm: Norm = "group", drop: Share = 0.0) -> Factory:
    """Three stages of one residual block, 16-32-64 channels; `drop` is the share of branches that stochastic depth
    leaves out in the last block. 78,042 parameters for three channels and ten classes."""
    return partial(ResNet, n_out, channels, (16, 32, 64), 1, norm, drop)


@guarded
def resnet18(n_out: int = 10, channels: int = 3, norm: Norm = "group", drop: Share = 0.0) -> Factory:
    """Four stages of two residual blocks, 64 to 512 channels, with a 3×3 first convolution for small pictures."""
    return partial(ResNet, n_out, channels, (64, 128, 256, 512), 2, norm, drop)


@guarded
def transformer(
    vocabulary: int,
    n_out: int,
    length: int = 80,
    width: int = 64,
    heads: int = 4,
    layers: int = 2,
    dropout: Share = 0.1,
    per_token: bool = False,
) -> Factory:
    """A small transformer encoder for rows of token ids (`from_arrays(…, dtype="int64")`): one answer for a row, or with
    `per_token` one for every token, each seeing only the tokens before it; then, where n_out is the vocabulary, the last
    layer shares its weights with the embedding."""
    return partial(Transformer, vocabulary, n_out, length, width, heads, layers, dropout, per_token)


@guarded
def lstm(
    vocabulary: int,
    n_out: int,
    width: int = 8,
    hidden: int = 256,
    layers: int = 2,
    dropout: Share = 0.0,
    per_token: bool = False,
) -> Factory:
    """An embedding, an LSTM and a linear layer for rows of token ids: the answer after the last token, or `per_token`. With
    these sizes LEAF's network for the next character."""
    return partial(Recurrent, vocabulary, n_out, width, hidden, layers, dropout, per_token)


MODELS: dict[str, Callable[..., Factory]] = {
    "linear": linear,
    "mlp": mlp,
    "small_cnn": small_cnn,
    "lenet5": lenet5,
    "two_conv": two_conv,
    "resnet8": resnet8,
    "resnet18": resnet18,
    "transformer": transformer,
    "lstm": lstm,
}
