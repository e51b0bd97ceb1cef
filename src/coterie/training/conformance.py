"""What every algorithm must do, as checks that run on anybody's class: `ct.check(MyAlgorithm())`.

The conformance suite runs the same checks over the registry. Each is a function of a `Case` and raises `Failed` with a
sentence, or the error that the algorithm itself raised. `small_case.py` has the federation and the network.
"""

from __future__ import annotations

import copy
import dataclasses
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from coterie.base.settings import with_setting
from coterie.base.tree import flatten, tree_map
from coterie.data.federation import Federation
from coterie.engines import LocalEngine
from coterie.errors import ConfigError, CoterieError, CoterieWarning, TaskError
from coterie.exchange.channels import Dropout
from coterie.exchange.channels.base import Channel, Where
from coterie.exchange.channels.updates import references
from coterie.exchange.messages import Algorithm, Ask, Ints
from coterie.learning.local_sgd import LocalSGD
from coterie.privacy.settings import Privacy
from coterie.training.cohorts import Everyone, FixedSize
from coterie.training.run import Run
from coterie.training.small_case import (
    COHORT,
    NUMBERS,
    TASK,
    TOLERANCE,
    Case,
    Failed,
    close,
    demand,
    identical,
    of_server,
    same_course,
    tensors,
    tried_on,
    with_few_steps,
)


def same_seed_same_numbers_other_seed_others(case: Case) -> None:
    one, again, other = (case.run(seed=seed, cohort=case.some(7)) for seed in (1, 1, 2))
    identical(one, again)
    moved = tensors(other)
    differs = any(not torch.equal(t, moved[name]) for name, t in tensors(one).items() if t.is_floating_point())
    demand(differs, "Another seed gives the same numbers.")


def a_round_changes_neither_its_state_nor_the_global_generators(case: Case) -> None:
    run = Run(case.algorithm, case.federation, TASK, 0, Everyone(), (), LocalEngine(), None)
    run.begin(resume=False, overwrite=False)
    run.one_round()
    given, initial = run.state, run.env.initial
    before, start = copy.deepcopy(vars(given)), copy.deepcopy(initial)
    drawn = torch.get_rng_state(), _numpy_state()
    run.one_round()
    for (name, old), (_, new) in zip(flatten(before).items(), flatten(vars(given)).items(), strict=True):
        same = torch.equal(old, new) if isinstance(old, Tensor) else old == new
        demand(same, f"A round changed {name} of the state it was given. Make a new one.")
    demand(all(torch.equal(start[name], initial[name]) for name in start), "A round changed the common start.")
    same = torch.equal(drawn[0], torch.get_rng_state()) and np.array_equal(drawn[1], _numpy_state())
    demand(same, "A round drew from a global generator. Use ctx.uniform, ctx.normal or cohort.key.")


def _numpy_state() -> Any:
    """NumPy's global generator."""
    return np.random.get_state(legacy=False)["state"]["key"].copy()  # noqa: NPY002


def equal_on_both_engines(case: Case) -> None:
    fast, plain = (case.run(cohort=case.some(COHORT), engine=e) for e in ("local", "loop"))
    close(fast, plain)
    same_course(fast, plain)
    near = np.allclose(fast.scores()["log_loss"], plain.scores()["log_loss"], rtol=1e-3, atol=1e-3)
    demand(near, "The vectorised engine and the loop give other scores.")


def equal_on_both_engines_to_rounding_in_float64(case: Case) -> None:
    rows = tried_on(case.sizes, dtype="float64")
    fast, plain = (case.run(federation=rows, engine=e) for e in ("local", "loop"))
    wide = all(t.dtype == torch.float64 for n, t in tensors(fast).items() if n.startswith("personal/"))
    demand(wide, "Models of float64 data are not float64.")
    close(fast, plain, 1e-10)


def resumed_in_the_middle_it_ends_bit_identically(case: Case) -> None:
    options: dict[str, Any] = {"cohort": case.some(5), "seed": 4, "channels": [Dropout(0.2)]}
    whole = case.run(5, **options)
    with tempfile.TemporaryDirectory() as folder:
        case.run(2, out=folder, **options)
        identical(whole, case.run(5, out=folder, resume=True, **options))
        identical(whole, case.run(5, out=folder, resume=True, **options))  # nothing left to do


class _Reversed:
    """The cohort in another order."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def sample(self, federation: Federation, seed: int, round: int) -> Ints:
        order: Ints = self.inner.sample(federation, seed, round)[::-1].copy()
        return order


def the_order_of_the_cohort_does_not_matter(case: Case) -> None:
    for inner in (Everyone(), FixedSize(case.some(7))):
        close(case.run(cohort=inner), case.run(cohort=_Reversed(inner)), 1e-6)


def one_client(case: Case) -> None:
    alone = tried_on((20,))
    if case.pair:
        try:
            case.run(federation=alone)
        except ConfigError as error:
            demand("exactly two" in str(error), f"One client is refused without 'exactly two': {error}")
            return
        raise Failed("It says exactly = 2 and accepts one client.")
    result = case.run(federation=alone, alone=True)
    demand(len(result.scores()) == 1 and np.isfinite(result.history["loss"]).all(), "One client has no finite loss.")


def a_round_with_nobody(case: Case) -> None:
    """An empty cohort, or a round whose replies are all lost: nothing is learnt, and nothing breaks."""
    start = flatten(vars(case.run(0).state))
    for options in ({"cohort": 1e-9}, {"channels": [Dropout(1.0)]}):
        result = case.run(2, **options)
        demand((result.history["bytes_up"] == 0).all(), "Nobody answered, and bytes were received.")
        demand(np.isfinite(result.scores()["log_loss"]).all(), "After rounds with nobody a client has no finite score.")
        now = flatten(vars(result.state))
        kept = all(not isinstance(t, Tensor) or torch.equal(t, now[name]) for name, t in start.items())
        demand(kept, "A round with nobody changed the server's state. Return the state when reply.clients is empty.")
    case.run(3, cohort=0.1)  # some rounds with nobody, some with few


def a_client_never_sampled_still_has_a_model_and_a_score(case: Case) -> None:
    fed = case.federation
    result = case.run(2, cohort=2, seed=1, alone="equal budget")
    table = result.evaluate()
    demand(list(table.index) == list(fed.clients) and len(result.clusters) == len(fed), "Some clients are not scored.")
    demand(table[["accuracy", "log_loss", "gain"]].notna().all().all(), "A client that was never sampled has no score.")
    last = fed.clients[case.some(4) - 1]
    x, _ = fed.test(last)
    demand(result.model(last)(x).shape == (len(x), 3), "A client's model gives outputs of another shape.")


def it_learns(case: Case) -> None:
    before, after = (case.run(rounds).scores()["log_loss"].mean() for rounds in (0, 20))
    demand(after < before - 0.02, f"Twenty rounds brought the log loss from {before:.3f} to {after:.3f} only.")


def regression_works_or_is_refused_in_a_sentence(case: Case) -> None:
    rows, how = tried_on(case.sizes, kind="regression"), {"alone": "equal budget"}
    try:
        fast, plain = (case.run(5, rows, NUMBERS, engine=e, **how) for e in ("local", "loop"))
    except (ConfigError, TaskError) as error:
        told = "class" in str(error) or "layers" in str(error)
        demand(told, f"Regression is refused without the words 'class' or 'layers': {error}")
        return
    close(fast, plain)
    table = fast.evaluate()
    better = case.run(0, rows, NUMBERS).scores()["mse"].mean() - table["mse"].mean()
    demand(better > 0, "Five rounds of regression made the error larger.")
    demand(np.allclose(table["gain"], table["alone"] - table["mse"]), "A gain of an error is the fall of the error.")


class _Watch(Channel):
    """Notes how far every update moved and checks the ask's declaration of it."""

    def __init__(self) -> None:
        self.moved: list[float] = []

    def up(self, send: Any, clients: Ints, ask: Ask, where: Where) -> Any:
        demand(not set(ask.updates) & set(ask.auxiliary), f"'{ask.name}' declares a field as update and as auxiliary.")
        flat = flatten(send)
        for path, origin in references(send, clients, ask, where, "The check of what clients send").items():
            demand(origin.shape == flat[path].shape, f"'{ask.name}' measures {path} from another shape.")
            self.moved.append(float((flat[path].double() - origin).norm() / (flat[path].double().norm() + 1e-300)))
        return send


def what_clients_send_is_declared(case: Case) -> None:
    """Every field is an update or auxiliary. Updates of models are measured from where the client started: with a tiny
    learning rate they nearly vanish beside the model (a gradient or a difference is all update)."""
    watch, slow = _Watch(), LocalSGD(steps=1, lr=1e-6, batch_size=None)
    tiny = with_setting(case.algorithm, "local", slow) or case.algorithm
    Case(with_setting(tiny, "solve", slow) or tiny).run(channels=[watch])
    for share in watch.moved:
        demand(share < 1e-3 or share > 0.99, "An update is not measured from where the client started: see From(…).")


class Broken(Channel):
    """The second client is broken from the first round on: its messages are NaN, or its data are."""

    def __init__(self, where: str) -> None:
        self.broken = where

    def data(self, x: Tensor, y: Tensor, clients: Ints, where: Where) -> Any:
        bad = torch.from_numpy(clients == 1).reshape(-1, *[1] * (x.dim() - 1))
        return (torch.where(bad, torch.nan, x), y) if self.broken == "data" else (x, y)

    def up(self, send: Any, clients: Ints, ask: Ask, where: Where) -> Any:
        if self.broken == "data":
            return send
        bad = torch.from_numpy(clients == 1)

        def spoil(t: Tensor) -> Tensor:
            return torch.where(bad.reshape(-1, *[1] * (t.dim() - 1)), torch.nan, t) if t.is_floating_point() else t

        return tree_map(spoil, send)


def a_client_that_sends_nan_is_named_and_ends_nobodys_run(case: Case) -> None:
    others = np.delete(np.arange(len(case.sizes)), 1)
    for where in ("messages", "data"):
        runs = [case.run(channels=[Broken(where)], engine=e) for e in ("local", "loop")]
        one, two = (run.evaluation.personal(others) for run in runs)
        for name in one:
            demand(torch.isfinite(one[name]).all(), f"One client's NaN {where} spoilt another's {name}.")
            torch.testing.assert_close(one[name], two[name], rtol=TOLERANCE, atol=TOLERANCE)
        demand(runs[0].about.get("dropped") == runs[1].about.get("dropped"), "The engines dropped other clients.")
        demand(runs[0].history["lost"].equals(runs[1].history["lost"]), "The engines lost other clients.")
        if case.algorithm.way == "alone" and where == "messages":  # it sends nothing, so nothing can be spoilt
            continue
        told = runs[0].about.get("dropped", [])
        named = {d["client"] for d in told} == {case.federation.clients[1]} and told[0]["round"] == 1
        demand(named and (runs[0].history["lost"] == 1).any(), f"A client with NaN {where} is not named as dropped.")


def a_private_run_works_or_is_refused_in_a_sentence(case: Case) -> None:
    """Additive asks are private without a line in the algorithm; `individual = True` says that they are not additive."""
    privacy = Privacy(3.0, 1e-6, clip=0.3, noise="simulation")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CoterieWarning)  # so few clients make any private model useless
            result = case.run(1, privacy=privacy)
    except ConfigError as error:
        told = case.algorithm.individual or "robust aggregate" in str(error)
        demand(told, f"A private run is refused; say so with individual = True: {error}")
        return
    demand(not case.algorithm.individual, "It says individual = True, and a private run is possible.")
    demand(all(torch.isfinite(t).all() for t in of_server(result).values()), "A private run ends with NaN or infinity.")


CHECKS: dict[str, Callable[[Case], None]] = {
    function.__name__: function
    for function in (
        same_seed_same_numbers_other_seed_others,
        a_round_changes_neither_its_state_nor_the_global_generators,
        equal_on_both_engines,
        equal_on_both_engines_to_rounding_in_float64,
        resumed_in_the_middle_it_ends_bit_identically,
        the_order_of_the_cohort_does_not_matter,
        one_client,
        a_round_with_nobody,
        a_client_never_sampled_still_has_a_model_and_a_score,
        it_learns,
        regression_works_or_is_refused_in_a_sentence,
        what_clients_send_is_declared,
        a_client_that_sends_nan_is_named_and_ends_nobodys_run,
        a_private_run_works_or_is_refused_in_a_sentence,
    )
}


def check(algorithm: Algorithm) -> pd.DataFrame:
    """Run the conformance checks on an algorithm of one's own, in less than a minute: one row per check, whether it
    `holds`, and the sentence `found` if it does not."""
    if not dataclasses.is_dataclass(algorithm) or isinstance(algorithm, type):
        raise ConfigError(
            f"check takes an algorithm, such as FedAvg(); got {algorithm!r}. Make an instance of the class."
        )
    case, rows = Case(with_few_steps(algorithm)), {}
    for name, one in CHECKS.items():
        try:
            one(case)
            found = ""
        except (Failed, CoterieError) as error:
            found = str(error)
        except Exception as error:  # whatever a stranger's class raises belongs into the table
            found = f"{type(error).__name__}: {error}"
        rows[name.replace("_", " ")] = {"holds": not found, "found": found}
    return pd.DataFrame.from_dict(rows, orient="index")
