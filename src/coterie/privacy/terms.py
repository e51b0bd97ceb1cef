"""The words of a guarantee and the bounds of a clip, as types of settings."""

from __future__ import annotations

from typing import Annotated

from coterie.base.arguments import Rule, is_number, one_of

ADJACENCIES = ("zero-out", "replace")
GUARANTEES = ("central", "joint", "local")

Adjacency = Annotated[str, one_of(*ADJACENCIES)]
Guarantee = Annotated[str, one_of(*GUARANTEES)]
Mode = Annotated[str, one_of("exact", "simulation")]
Population = Annotated[
    str, Rule("a short printable name", lambda v: isinstance(v, str) and v != "" and v.isprintable())
]
# Beyond these bounds, steps of the lattice or sums leave the range of floating point.
Clip = Annotated[float, Rule("a number from 1e-100 to 1e100", lambda v: is_number(v) and 1e-100 <= v <= 1e100)]
# With a smaller δ the equation of the least noise has no solution in floating point.
Delta = Annotated[float, Rule("a number from 1e-300 to below 1", lambda v: is_number(v) and 1e-300 <= v < 1)]
