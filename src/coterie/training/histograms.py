"""Private histograms of clients whose rows stay where they are.

Every release of a private `HistogramMixture` is an additive ask for whole numbers: only their noisy sum over all clients is
shown. So secure sums carry it, with the noise of the sites."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array

from coterie.base.tree import Tree
from coterie.data.federation import Federation
from coterie.data.provenance import undeclared
from coterie.engines.base import Env, rows_env
from coterie.engines.private import noisy_sites
from coterie.engines.whole_sums import WholeSums
from coterie.errors import ConfigError, DataError
from coterie.estimation.histograms.kl import normalise
from coterie.estimation.histograms.mixture import HistogramMixture
from coterie.estimation.histograms.private.crowd import Question, public_values
from coterie.exchange.messages import Ask, Context, SumBy, Up
from coterie.privacy import Released
from coterie.privacy.account import Account
from coterie.privacy.mechanisms.gaussian import GaussianMechanism
from coterie.privacy.taint import foreign, patched
from coterie.secure.settings import Secure

_REHEARSED = "sites and server were one process, so this shows the numbers of secure sums and hid nothing"


@dataclass(frozen=True)
class Counted:
    """Clients' answers to one kind of question; a client's counts are the sums of its training rows by column."""

    kind: Any  # a class of questions

    def client(self, ctx: Context) -> Tree:
        return {}

    def whole(self, ctx: Context, **public: torch.Tensor) -> Up:
        told = {name: t.numpy() if t.dim() else float(t) for name, t in public.items()}
        question, counts = self.kind(**told), ctx.x.double().sum(0).numpy()
        usable = bool(np.isfinite(counts).all() and (counts >= 0).all())  # else a client without tokens
        block = csr_array((counts if usable else 0 * np.nan_to_num(counts))[None])
        block = normalise(block)[0] if question.weighting == "user" else block
        return Up({"whole": torch.from_numpy(np.ascontiguousarray(question.whole(block), np.int64))})


@dataclass
class Elsewhere:
    """Clients as the users of a private fit: each release is one additive ask."""

    engine: Any
    env: Env
    louder: float = 1.0
    keeps: bool = False

    @property
    def users(self) -> int:
        return len(self.env.federation)

    @property
    def width(self) -> int:
        return self.env.federation.n_features

    @property
    def secure(self) -> Secure | None:
        found: Secure | None = getattr(self.engine, "secure", None)
        return found

    def release(self, question: Question, mechanism: GaussianMechanism, account: Account) -> Released[Any]:
        parts = max(noisy_sites(account.privacy, self.secure), 1)
        made: Any = mechanism
        one = WholeSums(replace(made, parts=parts), account, account.privacy, self.users, self.secure)
        down = {name: torch.from_numpy(np.array(value, np.float64)) for name, value in public_values(question).items()}
        asked = Counted(type(question)).whole
        self.env = replace(self.env, round=self.env.round + 1, private=one)  # type: ignore[arg-type]
        self.engine.run(Ask(asked, np.arange(self.users), down, reduce=SumBy(), updates={"whole": None}), self.env)
        assert one.released is not None
        self.louder = one.louder
        return one.released

    def choices(self, **more: str) -> dict[str, str]:
        why_not = [why for why in undeclared(self.env.federation, groups=False) if "predicted" not in why]
        words = why_not[0] if why_not else "public"
        found = {"vocabulary": words, "hyper-parameters": "fixed in advance"}
        if foreign(self.engine):
            found["engine"] = "unaccounted: it is not this package's"
        if type(self.env.federation) is not Federation or patched(self.env.federation):
            found["federation"] = "unaccounted: its class is not this package's"
        return found | more

    def about(self) -> dict[str, Any]:
        known: dict[str, Any] = {"public": ("the size of the vocabulary",)}
        if self.secure is None or self.secure.noise != "sites":
            return known
        return known | self.secure.trust | {"not_covered": (_REHEARSED,)}


def histograms(estimator: HistogramMixture, federation: Federation, engine: Any, seed: int) -> HistogramMixture:
    """The estimator, fitted to what the clients tell; a client's counts are the sums of its training rows by column."""
    if estimator.privacy is None:
        raise ConfigError(
            "Clients tell only sums, and without a budget HistogramMixture needs rows of users for its seeds. Pass "
            "privacy=ct.Privacy(…), or call its own fit."
        )
    if federation.x.dim() != 2:
        raise DataError(
            "Histograms are of tables with one column per token; these clients' rows have other dimensions."
        )
    return estimator.fit_crowd(Elsewhere(engine, rows_env(federation, seed)))
