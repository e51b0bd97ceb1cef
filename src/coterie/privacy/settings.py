"""``Privacy``: the guarantee and the budget that a user of the package asks for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from coterie.base.annotations import guarded
from coterie.base.arguments import Count, Positive, Rule, one_of
from coterie.errors import ConfigError
from coterie.privacy.terms import Adjacency, Clip, Delta, Mode, Population


@guarded
@dataclass(frozen=True)
class Privacy:
    """A budget for one run. ``unit`` says what is protected: a whole user (``"client"``), one row of a client (``"row"``),
    or all rows of a client that share a value of a column, such as ``"patient_id"``.

    ``clip`` bounds the L2 norm of everything one client sends in a round. ``noise="exact"`` is the only mode that can get a
    valid receipt; ``"simulation"`` is fast and seeded and is NOT A DP RELEASE. ``adjacency="zero-out"`` hides whether a
    client's data were used at all, and the number of clients is public; ``"replace"`` hides which data a client had, and
    needs twice the noise.

    ``beyond="drop"`` leaves out an update that is longer than the clip, instead of shortening it. An attacker then gains
    nothing from a long update, and the long update of an honest client is lost. The noise stays the same.

    ``ledger`` is the path of an SQLite file that adds up all runs on the same ``users`` (a name for the population).
    All runs together may spend ``total_epsilon`` (at this δ); if it is not given, they may spend ``epsilon``.

    Where rows are protected, ``clip`` bounds what one row adds to a sum (for the decision, the length of its public,
    bounded values; for training, the norm of its gradient). ``"zero-out"`` then hides also whether the row is there at all
    (in training, whether it is used: the number of rows is public there), and every client books
    in its own name. ``rows_per_unit``: rows of a unit beyond so many are left out at random."""

    epsilon: Positive
    delta: Delta
    clip: Clip = 1.0
    noise: Mode = "exact"
    adjacency: Adjacency = "zero-out"
    ledger: str | Path | None = None
    users: Population = "users"
    total_epsilon: Positive | None = None
    beyond: Annotated[str, one_of("shorten", "drop")] = "shorten"
    unit: Population = "client"
    rows_per_unit: Count = 8

    def __post_init__(self) -> None:
        if self.ledger is not None and not str(self.ledger).strip():
            raise ConfigError("ledger must name a file, got an empty text; give a path, or leave it out.")
        if self.total < self.epsilon:
            raise ConfigError(
                f"total_epsilon must be at least epsilon = {self.epsilon:g}, got {self.total:g}; raise it or "
                "lower epsilon."
            )

    @property
    def total(self) -> float:
        """The ε that all runs on these users may spend together."""
        return self.epsilon if self.total_epsilon is None else self.total_epsilon

    @property
    def rows(self) -> int:
        """How many rows of a client one unit has at most; 0 where whole clients are protected."""
        return {"client": 0, "row": 1}.get(self.unit, self.rows_per_unit)

    @property
    def protects(self) -> str:
        """What is protected, for the receipt."""
        whole = {"client": "one user (client) with all of its data", "row": "one row of a client"}
        return whole.get(self.unit, f"all rows of a client with the same {self.unit} (at most {self.rows_per_unit})")

    @property
    def simulated(self) -> bool:
        """Whether the noise is simulated, so that the run is not a DP release."""
        return self.noise == "simulation"


Budget = Annotated[
    Privacy,
    Rule(
        "ct.Privacy(epsilon, delta, clip) of whole clients, which shortens what is beyond the clip",
        lambda v: type(v) is Privacy and v.beyond == "shorten" and v.unit == "client",
    ),
]
"""The setting `privacy` of an estimator."""
