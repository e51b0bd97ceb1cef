"""The parts of a deployed model: fitted candidates that predict, and that can be written as arrays."""

from dataclasses import dataclass, fields
from typing import Protocol, Self

import numpy as np

from coterie.comparison.exact.candidates.base import Fit
from coterie.comparison.exact.families import LINKS
from coterie.comparison.exact.fitting import Model, Scaling
from coterie.comparison.exact.levels import Levels
from coterie.data.coded_table import Floats, Ints

Arrays = dict[str, np.ndarray]


class Part(Protocol):
    """A fitted candidate. ``outputs`` are targets (rows, 1) or probabilities (rows, classes); owner −1 is a new client."""

    def outputs(self, X: Floats, owner: Ints) -> Floats: ...

    def arrays(self) -> Arrays:
        """Everything that predicting needs, as plain arrays: no training rows."""
        ...

    @classmethod
    def of(cls, arrays: Arrays) -> Self: ...


@dataclass(frozen=True)
class LinearPart:
    """An exact linear candidate (alone, together, shrunk, groups)."""

    model: Model

    def outputs(self, X: Floats, owner: Ints) -> Floats:
        return self.model.outputs(X, owner)

    def arrays(self) -> Arrays:
        fit, scaling = self.model.fit, self.model.scaling
        found = {"coef": fit.coef, "of_client": fit.of_client, "population": fit.population}
        found |= {"classification": np.array(fit.classification)}
        found |= {name: value for name, value in vars(scaling).items() if value is not None}
        found |= {"link": np.array(LINKS.index(self.model.link))}
        found |= {} if fit.spread is None else {"spread": fit.spread}
        found |= {} if self.model.levels is None else {"effects": self.model.levels.effects}
        return found | fit.details  # the prior of `shrunk`, for new clients

    @classmethod
    def of(cls, arrays: Arrays) -> Self:
        scaling = Scaling(**{f.name: arrays[f.name] for f in fields(Scaling) if f.name in arrays})
        coef, of_client, population = (arrays[name] for name in ("coef", "of_client", "population"))
        prior = {name: arrays[name] for name in ("prior_variance",) if name in arrays}
        fit = Fit(coef, of_client, population, bool(arrays["classification"]), arrays.get("spread"), details=prior)
        levels = Levels(arrays["effects"]) if "effects" in arrays else None
        return cls(Model(scaling, fit, LINKS[int(arrays.get("link", 0))], levels))
