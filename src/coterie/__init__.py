"""coterie: find out who should learn together, and let them.

Every public name is listed in `__init__.pyi` with the room it lives in, and imported when first used.
"""

import sys as _sys
from importlib.metadata import PackageNotFoundError as _NotInstalled
from importlib.metadata import version as _version
from typing import Any as _Any

from coterie.base import deprecated as _deprecated
from coterie.base.lazy import attach as _attach

try:
    __version__ = _version("coterie")  # git's tag at the time of installation
except _NotInstalled:  # the source is on the path and was never installed
    __version__ = "0+unknown"
_load, __dir__, __all__ = _attach(__name__, __file__)


def __getattr__(name: str) -> _Any:
    return _deprecated.moved(_sys.modules[__name__], name) if name in _deprecated.NAMES else _load(name)
