"""A private run: its plan, its ledger, what voids its receipt, and the receipt itself.

The number of releases is fixed in advance: rounds times the asks of a round in which clients send updates. Only Poisson
cohorts are accounted as sampling. Their members stay secret, so an exact run draws them from the operating system's entropy
and not from the run's seed. A cohort of fixed size is accounted as if everybody took part in every round. So is a Poisson
cohort that is asked more than once in a round: its releases share one draw, and are not independent samples.

The assumptions of the accountant are enforced before anything is released (`Session.require`): only drawn clients are asked,
each once per ask, and not more often in a round than planned. The server's side of a round sees only noisy sums. It does not
know the members of a Poisson cohort: it asks all clients, and the question goes to those that were drawn.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from coterie.aggregation import CentredClipping, Mean, with_aggregate
from coterie.base.settings import setting
from coterie.data.provenance import declared, undeclared
from coterie.engines.private import RELEASE, Releases
from coterie.errors import ConfigError, CoterieWarning
from coterie.exchange.messages import Ask, Ints, Reply
from coterie.privacy.account import Account, with_history
from coterie.privacy.ledger import Ledger
from coterie.privacy.loudness import signal
from coterie.privacy.plan import Line
from coterie.privacy.receipt import Receipt, weak_delta
from coterie.privacy.settings import Privacy
from coterie.privacy.taint import Released, public
from coterie.training.cohorts import Everyone, FixedSize, Poisson, Sampler
from coterie.training.validity import doubts, public_ranges

SIMULATION_ONLY = (
    "history (losses, numbers of clients and bytes), and warnings that follow from it",
    "evaluate() and scores()",
    "clusters and models of other clients than one's own",
    "participation() and gains",
)
"""What a run also shows to its user; no receipt covers it."""


_NEEDS = {
    "Median": "sorts the clients' numbers",
    "TrimmedMean": "sorts the clients' numbers",
    "Krum": "picks one client's reply",
    "MultiKrum": "picks some clients' replies",
    "GeometricMedian": "weighs clients by their distance to a centre that moves",
    "Bucketing": "shows means of a few clients",
    "NearestNeighbourMixing": "mixes each reply with its nearest ones",
    "CentredClipping": "looks at every reply again from each new centre",
}


def private_form(algorithm: Any, privacy: Privacy) -> tuple[Any, Privacy, dict[str, str]]:
    """The algorithm with additive asks only, its budget, and what was changed, in the words of a receipt's choices."""
    if privacy.unit != "client":
        raise ConfigError(
            f"Here a budget protects whole clients; got unit={privacy.unit!r}. Use unit='client', or protect rows with "
            "fit(FedAvg(LocalSGD(…))) or compare(across='sites')."
        )
    form, budget = _summed(algorithm, privacy)
    form = form.private() if hasattr(form, "private") else form
    changes = _changes(algorithm, form, type(algorithm).__name__)
    if budget != privacy:
        changes.append(f"clip={budget.clip:g}, beyond={budget.beyond!r}, as CentredClipping has it")
    return form, budget, dict.fromkeys(changes, "fixed in advance")


def _summed(algorithm: Any, privacy: Privacy) -> tuple[Any, Privacy]:
    """A robust rule as a change that each client makes to its own update before sums are taken, where this is equivalent.

    One step of centred clipping around the model that all clients received is the mean of clipped updates: its radius is a
    clip."""
    rule = setting(algorithm, "aggregate")
    if rule is None or isinstance(rule, Mean):
        return algorithm, privacy
    if isinstance(rule, CentredClipping) and rule.iterations == 1 and rule.start == "sent":
        if rule.beyond == "drop" and rule.radius > privacy.clip:
            raise ConfigError(
                f"Who is dropped beyond {rule.radius:g} cannot be clipped at {privacy.clip:g} as well; got a radius above "
                "the clip. Use the same number for both."
            )
        budget = replace(privacy, clip=min(privacy.clip, rule.radius), beyond=rule.beyond)
        return with_aggregate(algorithm, Mean()), budget
    why = _NEEDS.get(type(rule).__name__, "may look at single replies")
    raise ConfigError(
        f"A robust aggregate needs clear replies, and a private run has only sums; got {type(rule).__name__}, which {why}. "
        "Use aggregate=Mean(): privacy clips every client's update, which bounds a liar's influence; or "
        "CentredClipping(radius, iterations=1), which is the same with another radius."
    )


def _changes(before: Any, after: Any, place: str) -> list[str]:
    """The settings in which two algorithms differ."""
    if type(before) is not type(after) or not is_dataclass(before):
        return [] if before == after else [f"{place}={after!r} instead of {before!r}"]
    found = []
    for f in fields(before):
        found += _changes(getattr(before, f.name), getattr(after, f.name), f"{place}.{f.name}")
    return found


def unwrapped(start: Any) -> tuple[Any, Released[None]]:
    """A start without its history, and that history; a start of unknown origin voids a receipt."""
    if isinstance(start, Released):
        return start.value, start.map(lambda _: None)
    return start, Released(None) if start is None else with_history(start).map(lambda _: None)


def participation(sampler: Sampler, n_users: int) -> tuple[float, float]:
    """(the sampling that may be accounted, the public expected number of clients in a round)."""
    if type(sampler) is Everyone:  # a subclass may draw otherwise
        return 1.0, float(n_users)
    if type(sampler) is Poisson:
        return float(sampler.rate), sampler.rate * n_users
    if type(sampler) is FixedSize:
        return 1.0, float(sampler.size)
    raise ConfigError(
        f"A private run needs to know how clients are sampled; got {type(sampler).__name__}. Use everyone (None), a "
        "probability (Poisson), or a number of clients (accounted as if everybody took part)."
    )


def asks_per_round(algorithm: Any) -> int:
    """Asks of a round in which clients send updates."""
    return int(getattr(algorithm, "asks_per_round", 1))


def accounted_sampling(drawn: float, per_round: int) -> float:
    """The asks of one cohort share a draw: they are not independent samples."""
    return 1.0 if per_round > 1 else drawn


def planned_lines(drawn: float, per_round: int, rounds: int) -> list[Line]:
    """The releases of a run; none where it has no rounds."""
    count = rounds * per_round
    return [Line(RELEASE, 1.0, count, accounted_sampling(drawn, per_round))] if count else []


def _mixing(channels: Any) -> list[str]:
    """Channels in which a client's message may depend on other clients' data."""
    return [
        f"unaccounted: with the channel {type(c).__name__}, what one client sends may depend on other clients' data"
        for c in channels
        if c.whole or not c.separate
    ]


def _prepared(federation: Any) -> str | None:
    """Why a table's preparation voids a receipt; None if it reads no client's rows."""
    plan = federation.preprocessing
    if plan is None:
        return None
    if "kind" in plan and not plan["kind"].eq("numeric").any():
        if "inputs" in federation.declared:
            return None
        names = ", ".join(dict.fromkeys(plan["source"].astype(str)))
        return (
            f"unaccounted: the categories of {names} were read from all clients' rows; declare them with "
            "categories=privacy.public({column: [...]}), or leave these columns out"
        )
    return (
        "unaccounted: the table was scaled and encoded with statistics of all clients' rows; let clients scale their own "
        "(scaling='own')"
    )


def reads_clusters(algorithm: Any) -> bool:
    """Whether an algorithm, or one inside it, says that it reads the true groups; a private run shows them to no other."""
    if getattr(algorithm, "reads_clusters", False):
        return True
    parts = [getattr(algorithm, f.name) for f in fields(algorithm)] if is_dataclass(algorithm) else []
    return any(is_dataclass(part) and not isinstance(part, type) and reads_clusters(part) for part in parts)


def _shapes(session: Session, run: Any) -> None:
    """Void the receipt for every fact about shapes that was read from clients' data; note those declared public."""
    groups = reads_clusters(run.algorithm)
    for reason in undeclared(run.federation, groups=groups):
        session.ledger.void(reason)
    session.notes += declared(run.federation, groups=groups) + public_ranges(run.task)


@dataclass
class Session:
    """How a run of training fills its account. `releases` is what engines use in place of plain sums."""

    account: Account
    sampler: Sampler
    n_users: int
    releases: Releases
    choices: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    per_round: int = 1  # asks of a round in which clients send updates
    _asked: int = 0  # of them in this round

    @classmethod
    def open(
        cls,
        privacy: Privacy,
        algorithm: Any,
        sampler: Sampler,
        n_users: int,
        rounds: int,
        out: Path | None,
        state: Any,
        secure: Any = None,
    ) -> Session:
        """Plan, and reserve the plan in the ledger (`state`: the ledger of a checkpoint, to go on with)."""
        drawn, expected = participation(sampler, n_users)
        per_round = asks_per_round(algorithm)
        lines = planned_lines(drawn, per_round, rounds)
        sampling = accounted_sampling(drawn, per_round)
        account = Account.open(privacy, lines, folder=out, state=state)
        z = account.noise_multiplier(RELEASE)
        releases = Releases(account.privacy, account, z, n_users, sampling, expected, secure)
        self = cls(account, sampler, n_users, releases)
        self.per_round = per_round
        if sampling > drawn:
            self.notes.append(
                f"cohorts are accounted as full participation: their {per_round} asks of a round share one draw"
            )
        if isinstance(sampler, FixedSize):
            self.notes.append(
                f"cohorts of {sampler.size} clients are accounted as full participation: a fixed size is no Poisson sample"
            )
        return self

    @classmethod
    def of(cls, run: Any, stored: dict[str, Any] | None, start: Released[None]) -> Session | None:
        """The session of a run that has a budget; `stored` is what its checkpoint says, if it is resumed."""
        if run.privacy is None:
            return None
        if stored is not None and stored.get("privacy") is None:
            raise ConfigError(
                "The run in this folder is not private; resuming would mix two runs. Choose another folder."
            )
        state, n = (None if stored is None else stored["privacy"]), len(run.federation)
        secure = getattr(run.engine, "secure", None)
        self = cls.open(run.privacy, run.algorithm, run.sampler, n, run.rounds, run.out, state, secure)
        paid = self.ledger.unpaid((*start.bookings, *run.declared.bookings))
        for reason in (*start.taint, *paid, *_mixing(run.channels), *doubts(run)):
            self.ledger.void(reason)
        given = ["the start"] if run.start is not None and start.free else []
        self.notes += [f"declared public by the user: {part}" for part in (*given, *run.declared.parts)]
        if (prepared := _prepared(run.federation)) is not None:
            self.ledger.void(prepared)
        _shapes(self, run)
        self.notes = list(dict.fromkeys([*self.notes, *(() if state is None else state.get("notes", ()))]))
        if stored is None:
            self.warn(sum(t.numel() for t in run.env.initial.values()), int(setting(run.algorithm, "clusters") or 1))
        self.choices |= run.choices
        return self

    @property
    def ledger(self) -> Ledger:
        return self.account.ledger

    @property
    def privacy(self) -> Privacy:
        return self.account.privacy

    def stored(self) -> dict[str, Any]:
        """What a checkpoint keeps: the ledger's page, and what was declared until now, which a resume may no longer say."""
        return self.ledger.state() | {"notes": self.notes}

    def drawn(self, federation: Any, seed: int, round: int) -> Ints:
        """The clients that take part. If the claim needs a secret cohort, it is drawn from the operating system's entropy
        and is stored nowhere."""
        self._asked = 0
        if type(self.sampler) is FixedSize and self.sampler.size <= len(federation):
            return self.sampler.by_name(federation, seed, round)
        if type(self.sampler) is not Poisson or self.privacy.simulated:
            return self.sampler.sample(federation, seed, round)
        draws = np.frombuffer(os.urandom(8 * len(federation)), np.uint64)
        below = int(self.sampler.rate * 2.0**64)  # the product is exact; the probability is not larger
        return np.flatnonzero(draws < below) if below < 1 << 64 else np.arange(len(federation))

    @property
    def _secret(self) -> bool:
        return type(self.sampler) is Poisson

    def told(self, drawn: Ints) -> Ints:
        """The cohort as the server's side of a round may know it: a state that stored a secret cohort would reveal it."""
        return np.arange(self.n_users) if self._secret else drawn

    def admitted(self, ask: Ask, drawn: Ints) -> Ask:
        """The question to the drawn clients among those asked, if the server does not know which were drawn."""
        return ask.only(np.isin(ask.clients, drawn)) if self._secret else ask

    def require(self, ask: Ask, drawn: Ints) -> None:
        """Refuse a question that the accountant does not cover, before anything is released."""
        if len(np.unique(ask.clients)) < len(ask.clients):
            raise ConfigError(f"A private ask puts its question to each client once; '{ask.name}' asks a client twice.")
        if not np.isin(ask.clients, drawn).all():
            raise ConfigError(
                f"A private round may ask the clients of its cohort only; '{ask.name}' asks others. Ask cohort.clients, or "
                "train with everyone (cohort=None)."
            )
        self._asked += bool(ask.updates)
        if self._asked > self.per_round:
            raise ConfigError(
                f"{self.per_round} release{'s' * (self.per_round != 1)} per round are accounted, and '{ask.name}' would be "
                "one more. Say how many there are with the algorithm's asks_per_round."
            )

    def shown(self, reply: Reply) -> Reply:
        """The reply as the server's side of a round may see it: without values from messages before noise."""
        nobody = reply.lost[:0]
        return replace(reply, info={}, bytes_up=0, bytes_down=0, lost=nobody, dropped=nobody)

    def why_spent(self, rounds: int, spent: Exception) -> str:
        """Why no round can follow `rounds` saved ones, and what to do."""
        lost = sum(event.count for event in self.ledger.events()) - rounds * self.per_round
        if lost <= 0:
            return str(spent)
        return (
            f"the budget is spent, and resuming again will not help: {lost} booked release{'s' * (lost > 1)} died with the "
            f"process before being saved, and a release is paid once. The result is that of {rounds} rounds; use it, or "
            f"start a new run with a budget of its own ({spent})"
        )

    def warn(self, dimension: int, groups: int) -> None:
        """Warn before the run if the noise is larger than the signal, or if δ promises little."""
        if self.ledger.plan is None:
            return
        if (label := weak_delta(self.privacy.delta, self.n_users)) and not self.privacy.simulated:
            warnings.warn(f"In this private run {label}; choose a smaller δ.", CoterieWarning, stacklevel=5)
        z = self.releases.noise_multiplier
        if groups > 1:
            z *= (1 + (self.releases.count_weight / self.privacy.clip) ** 2) ** 0.5
        n, p = max(self.n_users // groups, 1), self.privacy
        share = min(1.0, self.releases.expected / self.n_users)
        found = signal(z, dimension, n, share, adjacency=p.adjacency)
        if found.drowned:
            where = f" in each of {groups} groups" if groups > 1 else ""
            warnings.warn(f"In this private run{where}, {found.warning}", CoterieWarning, stacklevel=5)

    def fingerprint(self) -> tuple[Any, ...]:
        p, plan = self.privacy, self.account.plan
        kept = (p.epsilon, p.delta, p.clip, p.noise, p.adjacency, p.users, p.beyond)
        return (*kept, None if plan is None else plan.to_json())

    def receipt(self) -> Receipt:
        """What was released until now."""
        known = ("the task, the network, and the names and numbers of features and classes", *self.notes)
        expected = f"the number of clients a round counts on, {self.releases.expected:g}"
        choices = {"rounds": "fixed in advance", "clip": "public", "settings": "fixed in advance"} | self.choices
        shown = replace(self.account, kept=[*self.account.kept, public("the start and all settings")])
        return shown.receipt(self.n_users, choices, public=(expected, *known), not_covered=SIMULATION_ONLY)
