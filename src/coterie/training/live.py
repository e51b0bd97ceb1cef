"""The run as a callback sees it, between two rounds."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from coterie.training.evaluation import Evaluation


@dataclass(frozen=True)
class Live:
    """`round`, `state` and `history` so far; `evaluate()` scores every client; `stop(reason)` ends the run after this round,
    with the reason in `result.about["stopped"]`."""

    _run: Any

    @property
    def round(self) -> int:
        """Rounds done."""
        done: int = self._run.done
        return done

    @property
    def state(self) -> Any:
        return self._run.state

    @property
    def history(self) -> pd.DataFrame:
        return pd.DataFrame(self._run.history)

    @property
    def evaluation(self) -> Evaluation:
        """Any client's model, predictions and losses as they stand."""
        found: Evaluation = self._run.evaluation()
        return found

    def evaluate(self) -> pd.DataFrame:
        """Every client's own model on its own test rows."""
        return self.evaluation.scores()

    def stop(self, reason: str = "a callback asked for it") -> None:
        self._run.about = self._run.about | {"stopped": reason}


def takes_live(callback: Callable[..., Any]) -> bool:
    """Whether a callback takes a third argument."""
    try:
        given = inspect.signature(callback).parameters.values()
    except (TypeError, ValueError):
        return False
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [p for p in given if p.kind in places and p.default is inspect.Parameter.empty]
    return len(needed) >= 3
