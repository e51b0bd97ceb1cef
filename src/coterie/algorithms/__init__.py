"""One paper, one file; its name is the algorithm's name on the command line. Users pass objects.

Every algorithm is a line of `__init__.pyi` and is imported when first used. `NAMES` imports none of them; `ALGORITHMS`, the
registry for the command line and the conformance suite, imports all.
"""

from typing import Any

from coterie.base.lazy import attach, homes

_FILES = {home.rpartition(".")[2]: name for name, (home, _) in homes(__file__).items()}
NAMES = tuple(_FILES)
_load, __dir__, __all__ = attach(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name != "ALGORITHMS":
        return _load(name)
    globals()[name] = {file: _load(kind) for file, kind in _FILES.items()}
    return globals()[name]
