"""coterie: find out who should learn together, and let them.

Every public name is listed in `__init__.pyi` with the room it lives in, and imported when first used.
"""

from importlib.metadata import PackageNotFoundError as _NotInstalled
from importlib.metadata import version as _version
from typing import Any as _Any
from warnings import warn as _warn

from coterie.lazy import attach

try:
    __version__ = _version("coterie")  # git's tag at the time of installation
except _NotInstalled:  # the source is on the path and was never installed
    __version__ = "0+unknown"
_load, __dir__, __all__ = attach(__name__, __file__)
_MOVED = ("Decision", "decide")  # to ct.comparison; the next release forgets them


def __getattr__(name: str) -> _Any:
    if name not in _MOVED:
        return _load(name)
    _warn(f"ct.{name} is now ct.comparison.{name}; the old name works for one more release.", FutureWarning, 2)
    return getattr(_load("comparison"), name)
