"""A callback of `fit` that writes every round to TensorBoard."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.base.annotations import guarded
from coterie.base.arguments import shown
from coterie.errors import ConfigError

if TYPE_CHECKING:
    from coterie.training.run import Run


@guarded
class TensorBoard:
    """`fit(…, callbacks=[TensorBoard("logs/first")])`, then `tensorboard --logdir logs`.

    Writes the numbers of the round (loss, clients, bytes, seconds, test scores with `evaluate_every`) and, every
    `groups_every` rounds, the sizes of the groups and the share of clients that moved since the last time; 0: never.
    where: a folder, or anything with `add_scalar(name, value, step)` and `flush()`, such as a SummaryWriter."""

    def __init__(self, where: str | Path | Any, groups_every: int = 1) -> None:
        if groups_every < 0:
            raise ConfigError(f"groups_every must be ≥ 0; got {groups_every}.")
        if not isinstance(where, str | Path) and not hasattr(where, "add_scalar"):
            raise ConfigError(f"where must be a folder or a SummaryWriter; got {shown(where)}. Name a folder.")
        self.writer: Any = where if hasattr(where, "add_scalar") else _writer(Path(where))
        self.groups_every = groups_every
        self._last: Any = None

    def __call__(self, run: Run) -> None:
        row = run.history[-1]
        for name, value in row.items():
            if name != "round" and isinstance(value, (int, float)) and np.isfinite(value):
                self.writer.add_scalar(name, float(value), run.done)
        if self.groups_every and run.done % self.groups_every == 0:
            self._groups(run)
        self.writer.flush()

    def _groups(self, run: Run) -> None:
        labels = run.evaluation().clusters()
        groups, sizes = np.unique(labels, return_counts=True)
        if 1 < len(groups) < len(labels):  # neither one model for all nor one per client
            for group, size in zip(groups, sizes, strict=True):
                self.writer.add_scalar(f"groups/size of {group}", float(size), run.done)
            if self._last is not None:
                self.writer.add_scalar("groups/share that moved", float((labels != self._last).mean()), run.done)
        self._last = labels


def _writer(folder: Path) -> Any:
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ConfigError(
                "TensorBoard needs a writer; got a folder and neither tensorboardX nor tensorboard is installed. "
                "Install one with `pip install 'coterie[tensorboard]'`, or pass a SummaryWriter."
            ) from None
    return SummaryWriter(str(folder))
