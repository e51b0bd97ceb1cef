"""Ready-made model factories: `Task(model=models.mlp(784, 200, 10))`. All are plain `nn.Sequential`s."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from torch import nn

Factory = Callable[[], nn.Module]


def linear(n_in: int, n_out: int) -> Factory:
    """Linear or (multinomial) logistic regression."""
    return lambda: nn.Sequential(nn.Flatten(), nn.Linear(n_in, n_out))


def mlp(n_in: int, hidden: int | tuple[int, ...], n_out: int) -> Factory:
    """Fully connected ReLU network."""
    widths = (n_in, *((hidden,) if isinstance(hidden, int) else hidden))

    def make() -> nn.Module:
        layers: list[nn.Module] = [nn.Flatten()]
        for a, b in pairwise(widths):
            layers += [nn.Linear(a, b), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(widths[-1], n_out))

    return make


def small_cnn(n_out: int = 10, channels: int = 1, side: int = 28) -> Factory:
    """Five layers: conv 5×5 (6), conv 5×5 (16), fully connected 120-84-out; 44,426 parameters on 28×28 and ten classes."""
    flat = 16 * (((side - 4) // 2 - 4) // 2) ** 2
    return lambda: nn.Sequential(
        *(nn.Conv2d(channels, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(flat, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, n_out)),
    )


def lenet5(n_out: int = 10, channels: int = 1, side: int = 28) -> Factory:
    """LeNet-5 with tanh and max-pooling; the first convolution pads by 2."""
    flat = 16 * ((side // 2 - 4) // 2) ** 2
    return lambda: nn.Sequential(
        *(nn.Conv2d(channels, 6, 5, padding=2), nn.Tanh(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(flat, 120), nn.Tanh(), nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, n_out)),
    )


def two_conv(n_out: int, channels: int = 3, side: int = 32, width: int = 64, hidden: int = 128) -> Factory:
    """IFCA's image network: two convolutions with max-pooling, two fully connected layers."""
    flat = 2 * width * (side // 4) ** 2
    return lambda: nn.Sequential(
        *(nn.Conv2d(channels, width, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(width, 2 * width, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(flat, hidden), nn.ReLU(), nn.Linear(hidden, n_out)),
    )


MODELS: dict[str, Callable[..., Factory]] = {
    "linear": linear,
    "mlp": mlp,
    "small_cnn": small_cnn,
    "lenet5": lenet5,
    "two_conv": two_conv,
}
