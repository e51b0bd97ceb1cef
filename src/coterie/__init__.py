"""coterie: find out who should learn together, and let them.

Every public name is listed in `__init__.pyi` with the room it lives in, and imported when first used.
"""

from importlib.metadata import PackageNotFoundError as _NotInstalled
from importlib.metadata import version as _version

from coterie.lazy import attach

try:
    __version__ = _version("coterie")  # git's tag at the time of installation
except _NotInstalled:  # the source is on the path and was never installed
    __version__ = "0+unknown"
__getattr__, __dir__, __all__ = attach(__name__, __file__)
