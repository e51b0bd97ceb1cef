"""Errors a user can act on: the rule, what was got, what to do. The command line prints them without a stack trace."""

from typing import Any


class CoterieError(Exception):
    """Base of every error coterie raises on purpose.

    The advice may differ by interface: `python` names arguments, `cli` names options. The text of the error gives the
    first; the command line prints `error.cli`."""

    def __init__(self, message: str = "", *, python: str = "", cli: str = "") -> None:
        super().__init__(f"{message} {python}".strip())
        self.cli = f"{message} {cli or python}".strip()


class CoterieWarning(UserWarning):
    """Something a user should know before trusting a result; one sentence, like an error."""


class OldSpelling(CoterieWarning, FutureWarning):
    """A name, a setting or an order of the last release was used; the sentence names the new spelling."""


class DataError(CoterieError, ValueError):
    """The data do not fit; the message names the client or column."""


class TaskError(CoterieError, ValueError):
    """The model, loss or metric does not fit the data or the engine."""


class ConfigError(CoterieError, ValueError):
    """A setting is wrong."""


class TooFew(ConfigError):
    """A robust rule cannot work with so few clients."""


class ClientError(CoterieError, RuntimeError):
    """A client function failed; the message names client, phase and line."""


class EngineError(CoterieError, RuntimeError):
    """The processes that clients run in could not be started, or died too often."""


class Diverged(CoterieError, ArithmeticError):
    """Training produced NaN or infinite values; the last good state is kept.

    Engines raise it with the client's position and the phase; the training loop adds round, id and what to lower."""

    def __init__(self, client: int | None, phase: str, message: str = "") -> None:
        super().__init__(message or f"client {client} produced NaN or infinite values in '{phase}'")
        self.client = client
        self.phase = phase
        self.result: Any = None  # a Result of the rounds before, where the clients' rows are in reach

    def __reduce__(self) -> Any:
        return type(self), (self.client, self.phase, str(self))
