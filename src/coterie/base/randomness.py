"""Random numbers as a pure function of (seed, client, round, purpose).

A counter-based generator (SplitMix64's finaliser on key + counter·γ) written in int64 tensor arithmetic: it is the same
inside and outside `vmap`, for one client or a thousand, whatever the chunk size, the order of the cohort or the number of
workers. Not for privacy noise: it is predictable by design.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


_GAMMA = _signed(0x9E3779B97F4A7C15)
_M1 = _signed(0xBF58476D1CE4E5B9)
_M2 = _signed(0x94D049BB133111EB)
_LAST = (1 << 63) - 1
_ALL = (1 << 64) - 1


def _xorshift(z: Tensor, bits: int) -> Tensor:
    return z ^ ((z >> bits) & ((1 << (64 - bits)) - 1))  # >> keeps the sign; the mask makes the shift logical


def mix(z: Tensor) -> Tensor:
    z = _xorshift(z, 30) * _M1
    z = _xorshift(z, 27) * _M2
    return _xorshift(z, 31)


def _mixed(value: int) -> int:
    """`mix` of one number, without tensors."""
    z = value & _ALL
    z = ((z ^ z >> 30) * _M1) & _ALL
    z = ((z ^ z >> 27) * _M2) & _ALL
    return _signed(z ^ z >> 31)


def word(name: str) -> int:
    """A 64-bit number for a purpose's name."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little", signed=True)


def fold(key: Tensor, *values: int | Tensor | str) -> Tensor:
    """A new key from a key and its purpose."""
    for value in values:
        if isinstance(value, str):
            value = word(value)
        mixed = _mixed(value + _M2) if isinstance(value, int) else mix(value + _M2)
        key = mix(mix(key + _GAMMA) ^ mixed)
    return key


def base_key(seed: int) -> Tensor:
    return fold(torch.tensor(_signed(int(seed) & _ALL), dtype=torch.int64), "coterie")


def client_keys(keys: Tensor | npt.NDArray[np.int64], seed: int) -> Tensor:
    """The clients' own keys under a seed, from which all random numbers of a client derive."""
    return torch.as_tensor(keys) ^ base_key(seed)


def bits(key: Tensor, count: int) -> Tensor:
    """(…, count) int64 words for keys of shape (…)."""
    counter = torch.arange(1, count + 1, dtype=torch.int64, device=key.device)
    return mix(key.unsqueeze(-1) + counter * _GAMMA)


def uniform(key: Tensor, count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """(…, count) numbers in [0, 1)."""
    numbers = ((bits(key, count) >> 11) & ((1 << 53) - 1)).to(torch.float64) * 2.0**-53
    return numbers.to(dtype).clamp(max=1.0 - torch.finfo(dtype).eps / 2)


def normal(key: Tensor, count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """(…, count) standard normal numbers (Box–Muller)."""
    u = 1.0 - uniform(fold(key, 1), count, torch.float64)
    v = uniform(fold(key, 2), count, torch.float64)
    return (torch.sqrt(-2.0 * torch.log(u)) * torch.cos(2.0 * torch.pi * v)).to(dtype)


def permutation(key: Tensor, mask: Tensor) -> Tensor:
    """(…, n) order that shuffles the positions where mask holds and puts the padding last.

    The order of the real samples does not depend on how much padding follows them.
    """
    words = torch.where(mask.bool(), bits(key, mask.shape[-1]).clamp(max=_LAST - 1), _LAST)
    return words.argsort(dim=-1, stable=True)
