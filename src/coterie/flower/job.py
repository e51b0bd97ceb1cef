"""What server and sites know of a run before the first message; it is the same at all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from coterie.base.disk import digest
from coterie.base.settings import setting
from coterie.data.federation import Federation
from coterie.engines.secure import additive
from coterie.errors import ConfigError
from coterie.flower.site_tables import LEAST, require_named
from coterie.flower.wire import PROTOCOL
from coterie.learning.task import Task
from coterie.privacy.settings import Privacy
from coterie.secure.roster import known_sites
from coterie.secure.settings import Secure
from coterie.training.private_run import private_form


@dataclass(frozen=True)
class Job:
    """data: the options of `from_frame`; reading: those of `read_table`; task: makes the task for the agreed columns."""

    algorithm: Any
    task: Callable[[Federation], Task]
    data: Mapping[str, Any]
    rounds: int = 10
    seed: int = 0
    cohort: Any = None
    privacy: Privacy | None = None
    reading: Mapping[str, Any] = field(default_factory=dict)
    least: int = LEAST  # a site sends no statistics of fewer rows before a run
    secure: Secure | None = None  # the server sees sums over sites only
    alone: bool = True  # sites also train their clients alone, at the end and without exchange, to measure gains
    text: str = ""  # of the run's file
    ends: Any = None  # of a study (`studies.Ends`): what its server and its sites make of the answers

    def __post_init__(self) -> None:
        require_named(self.data, self.privacy is not None)
        if self.secure is not None:
            known_sites(self.secure)
        if self.ends is not None:
            return
        if setting(self.algorithm, "clusters", 1) is None:
            raise ConfigError(
                "The number of clusters is chosen on all clients' held-out rows, which stay at their sites. Set clusters."
            )
        if self.secure is not None:
            object.__setattr__(self, "algorithm", additive(self.algorithm))
        if self.privacy is not None:
            form, budget, changes = private_form(self.algorithm, self.privacy)
            for name, value in (("algorithm", form), ("privacy", budget), ("choices", changes)):
                object.__setattr__(self, name, value)

    @property
    def settings(self) -> str:
        """A checksum of everything that server and sites must have alike, with the defaults of this version."""
        parts = [PROTOCOL, repr(self.algorithm), sorted(self.data.items()), self.rounds, self.seed, repr(self.cohort)]
        more = [repr(self.privacy), sorted(self.reading.items()), repr(self.secure), self.ends is None, self.text]
        return digest([repr([*parts, *more])])

    choices: dict[str, str] = field(default_factory=dict, init=False)
    """The changes that a budget made in the algorithm, for the receipt."""
