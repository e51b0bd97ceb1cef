"""Where a client function went wrong: the user's own file and line, and tensors it must not write into."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coterie.base.tree import flatten
from coterie.errors import ClientError

_OURS = (str(Path(__file__).parents[1]), str(Path(torch.__file__).parent), sysconfig.get_paths()["stdlib"])


def line_of(error: BaseException, function: Callable[..., Any]) -> str:
    """`file:line (code)` of the deepest frame in the user's own code, else in the client function's file."""
    frames = traceback.extract_tb(error.__traceback__)
    home = getattr(getattr(function, "__code__", None), "co_filename", None)
    own = (f for f in reversed(frames) if not f.filename.startswith((*_OURS, "<")))
    at = next(own, None) or next((f for f in reversed(frames) if f.filename == home), frames[-1])
    return f"{at.filename}:{at.lineno} ({at.line})"


class Untouched:
    """Tensors that client code must not change, because other clients use them too.

    torch counts the writes into a tensor's memory; the counts are compared before and after."""

    def __init__(self, *trees: Any) -> None:
        self._tensors = [
            (path, value) for tree in trees for path, value in flatten(tree).items() if isinstance(value, Tensor)
        ]
        self._before = [t._version for _, t in self._tensors]

    def check(self, phase: str) -> None:
        for (path, t), before in zip(self._tensors, self._before, strict=True):
            if t._version != before:
                raise ClientError(
                    f"The client function '{phase}' writes into {path!r}, which other clients or rounds use too. Make a new "
                    "tensor instead: x = x + 1, not x += 1 or x.add_(1)."
                )
