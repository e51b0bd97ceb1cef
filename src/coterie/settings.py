"""Settings of algorithms and rules: how counts are checked, how one setting is replaced inside a wrapper, and how settings
of the last release are still taken."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import wraps
from numbers import Integral
from typing import Any, TypeVar, cast

from coterie.errors import ConfigError, CoterieWarning

Kind = TypeVar("Kind")
Rewrite = Callable[[dict[str, Any], str, Any], None]
"""Puts the value of a former setting, given by its name, into the settings of today."""


def whole_number(name: str, value: Any, least: int = 1, *, owner: Any = None) -> int:
    """A setting as a plain int; None is for the caller to allow. `owner` is the object it is a setting of."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        needs = f"{name} must be" if owner is None else f"{type(owner).__name__} needs {name} to be"
        raise ConfigError(f"{needs} a whole number ≥ {least}; got {_brief(value)}.")
    return int(value)


def _brief(value: Any) -> str:
    """On one line, and not too long."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:79]}…"


def cluster_count(owner: Any) -> int:
    """The number of clusters of an algorithm that is about to run."""
    if owner.clusters is None:
        raise ConfigError(f"{type(owner).__name__} needs a number of clusters outside fit; pass clusters=….")
    return int(owner.clusters)


def setting(owner: Any, name: str, default: Any = None) -> Any:
    """A setting of an algorithm or of the one it wraps (its `base`); `default` where neither has it."""
    if name in _names(owner):
        return getattr(owner, name)
    return setting(owner.base, name, default) if "base" in _names(owner) else default


def with_setting(owner: Any, name: str, value: Any) -> Any:
    """The same algorithm with one setting replaced, its own or that of the one it wraps; None where neither has it."""
    if name in _names(owner):
        return replace(owner, **{name: value})
    inner = with_setting(owner.base, name, value) if "base" in _names(owner) else None
    return None if inner is None else replace(owner, base=inner)


def _names(owner: Any) -> set[str]:
    return {f.name for f in fields(owner)} if is_dataclass(owner) and not isinstance(owner, type) else set()


# ---- the last release ------------------------------------------------------------------------------------------------


def former_settings(
    *, order: tuple[str, ...] = (), **former: tuple[str, Rewrite]
) -> Callable[[type[Kind]], type[Kind]]:
    """Let a dataclass take the settings of the last release, with a warning that names the new spelling.

    `former` says of each old name how it is spelled now and how its value is rewritten. `order` is the old order of settings
    given by position; it holds where a call has more of them than today, or gives a text, which is now given by name."""

    def decorate(kind: type[Kind]) -> type[Kind]:
        made = vars(kind)["__init__"]
        today = [f.name for f in fields(cast(Any, kind)) if f.init and not f.kw_only]

        @wraps(made)
        def init(self: Any, *args: Any, **given: Any) -> None:
            if len(args) > len(today) or any(isinstance(value, str) for value in args):
                _warn(f"{kind.__name__} takes {order[1]}=… and what follows it by name")
                args, given = (), dict(zip(order, args, strict=False)) | given
            old = [name for name in former if name in given]
            if old:
                _warn(f"In {kind.__name__}, " + " and ".join(f"{name} is now {former[name][0]}" for name in old))
            for name in old:
                former[name][1](given, name, given.pop(name))
            made(self, *args, **given)

        for name, value in (("__init__", init), ("former_settings", former)):
            setattr(kind, name, value)
        return kind

    return decorate


def now_in_reproductions(home: str, **usual: Any) -> Callable[[Callable[..., Any]], Any]:
    """Let a class or function say where a paper's failing variant went, which was a setting of it.

    `home` is the file that has the variant. `usual` names each such setting and the value that changes nothing."""

    def decorate(thing: Any) -> Any:
        made = vars(thing)["__init__"] if isinstance(thing, type) else thing

        @wraps(made)
        def call(*args: Any, **given: Any) -> Any:
            for name in [name for name in usual if name in given]:
                value = given.pop(name)
                if value != usual[name]:
                    raise no_longer_here(thing.__name__, name, value, home)
                _warn(f"{thing.__name__} has no {name} any more: leave it out")
            return made(*args, **given)

        if not isinstance(thing, type):
            return call
        for name, value in (("__init__", call), ("former_settings", usual)):
            setattr(thing, name, value)
        return thing

    return decorate


def no_longer_here(owner: str, name: str, value: Any, home: str) -> ConfigError:
    """Where a paper's failing variant went, in one sentence."""
    return ConfigError(
        f"{owner} has no {name}={_brief(value)} any more: the paper's variant, which fails, is in {home} of the repository. "
        f"Leave {name} out."
    )


def former_names(kind: type) -> Mapping[str, Any]:
    """The names of the settings of the last release that a class still takes."""
    found: Mapping[str, Any] = getattr(kind, "former_settings", {})
    return found


def _warn(sentence: str) -> None:
    warnings.warn(f"{sentence}; the old spelling works for one more release.", CoterieWarning, stacklevel=3)
