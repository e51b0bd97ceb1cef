"""How a site protects itself from its server: it counts its own releases and logs everything that leaves.

`budget.json` holds the releases of all runs in the site's folder, with their noise: their total cost counts, whatever the
runs' files say. It is written before the site computes an answer, so that neither a killed process nor a second
run can regain any of it. `statistics.json` holds the one agreement on columns that
this folder takes part in: the same questions are answered again, other questions are refused. `outgoing.jsonl` has a line
per answer and refusal, written before it leaves; lines are only added.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.base.disk import add_lines, digest, locked, unlinked, write_text
from coterie.base.settings import setting
from coterie.base.tree import Tree, flatten
from coterie.data.digits import LEVELS
from coterie.engines.base import ClientStates
from coterie.engines.private import RELEASE
from coterie.errors import ConfigError
from coterie.exchange.messages import Ints
from coterie.flower import wire
from coterie.flower.heads import MOST_GROUPS
from coterie.flower.job import Job
from coterie.privacy.account import plan_of
from coterie.privacy.accounting import compose
from coterie.privacy.events import Event
from coterie.training.cohorts import Everyone, Poisson, sampler
from coterie.training.private_run import accounted_sampling, asks_per_round, participation, planned_lines

BUDGET, OUTGOING, STATISTICS = "budget.json", "outgoing.jsonl", "statistics.json"
MOST_ASKS = 100  # of a study
MOST_TRIAL_ROUNDS = 10_000  # of a training in a study
MOST_RUNS = 64  # runs whose rows and results a site keeps at the same time
_PATIENCE = 60.0  # seconds to wait for another message to this site
_CONTENT = ("phase", "clients", "reduce", "updates", "auxiliary", "given", "test")


def planned(job: Job, n_users: int) -> dict[str, float]:
    """The numbers of a private run, from this site's own copy of the job."""
    assert job.privacy is not None
    sampling, expected = participation(sampler(job.cohort), n_users)
    per_round = asks_per_round(job.algorithm)
    plan = plan_of(job.privacy, planned_lines(sampling, per_round, job.rounds))
    return {
        "noise_multiplier": 1.0 if plan is None else plan.noise_multiplier(RELEASE),
        "n_users": n_users,
        "sampling": accounted_sampling(sampling, per_round),
        "expected": expected,
    }


@dataclass(frozen=True)
class Guard:
    """job: the site's own copy. folder: the site's, above those of its runs."""

    job: Job
    folder: Path

    # ---- before an answer --------------------------------------------------------------------------------------------

    def admit_round(self, kind: str, head: Mapping[str, Any]) -> None:
        """Refuse rounds beyond the run's number of rounds: a result has a row per round."""
        most = self.job.rounds if kind == "finish" else self.job.rounds - 1
        if head.get("trial") is not None:
            self._admit_trial(head["trial"]["name"])
            most = MOST_TRIAL_ROUNDS
        if head["round"] > most:
            raise ConfigError(f"This run has {self.job.rounds} rounds; the server speaks of round {head['round'] + 1}.")

    def _admit_trial(self, name: str) -> None:
        """Refuse trainings that the run's file does not name."""
        named = () if self.job.ends is None else self.job.ends.algorithms
        if not named or name not in (*named, "local"):
            raise ConfigError(
                f"By this site's copy of the run nothing is trained as {name!r}. Give both the same project."
            )

    def admit_run(self, run: str) -> None:
        """Refuse a name that is taken, and too many runs for the disk: each run keeps a copy of the rows."""
        if (self.folder / run).exists():
            raise ConfigError("This site has begun a run of that name already. Start the run again.")
        if sum(path.is_dir() for path in self.folder.iterdir()) >= MOST_RUNS:
            raise ConfigError(
                f"This site's folder holds {MOST_RUNS} runs, and each keeps a copy of the rows. Its owner may remove the "
                "folders of runs that are over."
            )

    def admit(
        self, head: Mapping[str, Any], tree: Tree, own: Ints, states: ClientStates, plan: Mapping[str, float]
    ) -> None:
        """Refuse an ask that an honest server does not send, and count a private ask."""
        study = self.job.ends is not None and head["trial"] is None
        wanted = None if self.job.secure is None else ["SumBy", 1]
        if study and (head["ask"] >= MOST_ASKS or head["reduce"] != wanted or head["test"]):
            of = "single clients" if wanted is None else "all clients"
            raise ConfigError(f"A study asks at most {MOST_ASKS} questions, for sums of {of}.")
        most = max(int(setting(self.job.algorithm, "clusters", 1) or 1), MOST_GROUPS)
        if self.job.privacy is None and self.job.secure is None:
            most = max(most, states.n_clients)
        if head["reduce"] is not None and head["reduce"][1] > most:
            raise ConfigError(f"An ask of this run has at most {most} groups; the server wants {head['reduce'][1]}.")
        if self.job.privacy is None or head["private"] is None:
            return
        for name, number in plan.items():
            if not math.isclose(head["private"][name], number, rel_tol=1e-9):
                raise ConfigError(
                    f"By this site's copy of the run {name} is {number:g}; the server says {head['private'][name]:g}. "
                    "Give both the same project."
                )
        alone = len(head["clients"]) == 1 < len(own) and self.job.secure is None  # in secure sums nobody is
        if alone and not isinstance(sampler(self.job.cohort), Poisson):
            raise ConfigError("Several clients share this site, and the server asks one alone; a sum would be its own.")
        if head["updates"]:
            if len(head["clients"]) < len(own) and isinstance(sampler(self.job.cohort), Everyone):
                raise ConfigError(
                    "Everyone takes part in this run, and the server leaves out clients of this site; two sums would show "
                    "the clients in which they differ."
                )
            self._count(head, tree, states, plan)

    def _count(self, head: Mapping[str, Any], tree: Tree, states: ClientStates, plan: Mapping[str, float]) -> None:
        """Count one more release, unless the same question was asked before: a restarted server repeats its question."""
        place, content = f"{head['run']} {head['round']} {head['ask']}", _digest(head, tree, states)
        with locked(self.folder, _PATIENCE):
            spent = self.spent()
            before = spent.setdefault(place, {})
            if content in before:
                return
            if before and not isinstance(sampler(self.job.cohort), Poisson):
                raise ConfigError("The server repeats a question with other content; this site has answered it once.")
            assert self.job.privacy is not None
            before[content] = [plan["noise_multiplier"], plan["sampling"], self.job.privacy.adjacency]
            self._require_budget(spent, head["run"])
            write_text(self.folder / BUDGET, json.dumps(spent), private=True)

    def _require_budget(self, spent: Mapping[str, Mapping[str, list[Any]]], run: str) -> None:
        """Refuse more questions than a run has, and a question that would exceed the budget of all runs here."""
        budget, most = self.job.privacy, self.job.rounds * asks_per_round(self.job.algorithm)
        assert budget is not None
        alone = sum(len(asked) for place, asked in spent.items() if place.split(" ")[0] == run)
        if alone > most or self._cost(spent) > budget.total:
            raise ConfigError(
                f"The budget of this site is spent: a run may ask {most} questions, and all runs in its folder together may "
                f"cost ε = {budget.total:g}."
            )

    def _cost(self, spent: Mapping[str, Mapping[str, list[Any]]]) -> float:
        """The ε of the releases of all runs here."""
        budget = self.job.privacy
        assert budget is not None
        made = Counter((z, q) for asked in spent.values() for z, q, _ in asked.values())
        if any(how[2] != budget.adjacency for asked in spent.values() for how in asked.values()):
            raise ConfigError(
                f"The releases of this site were made under another adjacency than {budget.adjacency!r}, and the two do not "
                "add up. Give the run the adjacency of the earlier ones, or another folder."
            )
        together = [
            Event(RELEASE, 1.0, "planned", z, z, 1, sampling=q, count=n, adjacency=budget.adjacency)
            for (z, q), n in made.items()
        ]
        return compose(together).epsilon(budget.delta) if together else 0.0

    def spent(self) -> dict[str, dict[str, list[Any]]]:
        """The releases of all runs here: run, round and ask, a checksum of each question, its noise, sampling, adjacency."""
        found = self._kept(BUDGET)
        if not all(
            isinstance(asked, dict) and all(isinstance(how, list) and len(how) == 3 for how in asked.values())
            for asked in found.values()
        ):
            raise ConfigError(f"{BUDGET} of this site is damaged or of an older version. Give the site another folder.")
        return found

    def _kept(self, name: str) -> dict[str, Any]:
        file = unlinked(self.folder / name)
        try:
            found = json.loads(file.read_text("utf-8")) if file.exists() else {}
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise ConfigError(
                f"{name} of this site is damaged. Bring it back from a copy, or give the site another folder."
            )
        return found

    def admit_statistics(self, kind: str, head: Mapping[str, Any]) -> None:
        """Refuse statistics of other columns than the run's, and more than one agreement needs: per column and level two
        prefixes, which continue those before, and one fill."""
        asked = head["prefixes"] if kind == "digits" else head["fills"]
        if not set(asked) <= set(self.job.data["features"]):
            raise ConfigError("The server asks for statistics of a column that is no feature of this run.")
        with locked(self.folder, _PATIENCE):
            kept = self._kept(STATISTICS)
            for column, value in asked.items():
                mine = kept.setdefault(column, {})
                if kind == "digits":
                    level = head["level"]
                    before = mine.get(str(level - 1), []) if level else [0]
                    goes_on = all((p >> 8 if level else p) in before for p in value)
                    key, value = str(level), sorted(set(value))
                else:
                    key, goes_on = "fill", value == 0.0 or str(LEVELS - 1) in mine
                if not goes_on or mine.setdefault(key, value) != value:
                    raise ConfigError(
                        f"This site takes part in one agreement on column {column!r}, and the server asks for more. If you "
                        f"want another run, remove {STATISTICS} from the site's folder."
                    )
            write_text(self.folder / STATISTICS, json.dumps(kept), private=True)

    # ---- before it leaves ----------------------------------------------------------------------------------------------

    def note(self, kind: str, head: Mapping[str, Any], answer: bytes) -> bytes:
        """Log what is about to leave."""
        told, tree = wire.unpack(answer)
        line: dict[str, Any] = {"bytes": len(answer), "fields": sorted(told)}
        line |= {"summed": head.get("reduce") is not None, "protected": self.job.secure is not None}
        line |= {"private": bool(head.get("private")), "settings": self.job.settings}
        line["tensors"] = {k: [str(t.dtype).removeprefix("torch."), list(t.shape)] for k, t in flatten(tree).items()}
        if self.job.privacy is not None:
            spent = self.spent()
            line["releases"] = sum(map(len, spent.values()))
            line["epsilon"] = round(self._cost(spent), 4)
        self._log(kind, head, line)
        return answer

    def note_refusal(self, kind: str, head: Mapping[str, Any], told: str) -> None:
        """Log the sentence with which a question is refused; it may quote a cell of an unusable table."""
        line = wire.one_line(told)
        self._log(kind, head, {"refused": line, "bytes": len(line.encode()), "settings": self.job.settings})

    def _log(self, kind: str, head: Mapping[str, Any], what: Mapping[str, Any]) -> None:
        line = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "message": kind}
        line |= {name: head[name] for name in ("run", "round", "ask", "phase", "level") if name in head}
        add_lines(self.folder / OUTGOING, [json.dumps(line | dict(what))], private=True)


def _digest(head: Mapping[str, Any], tree: Tree, states: ClientStates) -> str:
    """A checksum of a question and of the states that clients answer it with, which is equal for every attempt. Lengths are
    part of it, so that one tensor cannot have the checksum of two."""
    row, values = states.packed()
    flat = flatten({"asked": tree, "states": values if states.used else {}})
    parts: list[Any] = [json.dumps([head[k] for k in _CONTENT], sort_keys=True), row]
    for name, t in sorted(flat.items()):
        parts += [json.dumps([name, str(t.dtype), list(t.shape)]), t.contiguous().numpy()]
    return digest(parts)
