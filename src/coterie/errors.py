"""Errors a user can act on: the rule, what was got, what to do. The command line prints them without a stack trace."""

from typing import Any


class CoterieError(Exception):
    """Base of every error coterie raises on purpose."""


class CoterieWarning(UserWarning):
    """Something a user should know before trusting a result; one sentence, like an error."""


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


class Diverged(CoterieError, ArithmeticError):
    """Training produced NaN or infinite values; the last good state is kept.

    Engines raise it with the client's position and the phase; the training loop adds round, id and what to lower."""

    def __init__(self, client: int | None, phase: str, message: str = "") -> None:
        super().__init__(message or f"client {client} produced NaN or infinite values in '{phase}'")
        self.client = client
        self.phase = phase
        self.result: Any = None  # a Result of the rounds before
