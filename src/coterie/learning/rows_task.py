"""A task for questions that are answered from a client's rows as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coterie.learning.task import Task

if TYPE_CHECKING:
    from coterie.data.federation import Federation


class RowsTask(Task):
    """A task whose clients answer one by one, from unpadded rows."""

    @property
    def alone(self) -> bool:
        return True

    def network(self, *_: Any) -> None:
        return None


def rows_task(federation: Federation) -> Task:
    """The task of clients that answer one by one."""
    usual = Task.default(federation)
    return RowsTask(usual.model, usual.loss, usual.metric)
