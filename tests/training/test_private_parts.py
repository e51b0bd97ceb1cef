"""Parts of a private run that carry clients' data past a receipt: each once earned a valid one."""

from __future__ import annotations

import copy
import os
import signal
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import coterie as ct
from coterie.base.tree import tree_map
from coterie.exchange.channels.attacks import SignFlip
from coterie.exchange.channels.base import Channel
from coterie.learning.standardised import standardised
from coterie.privacy import ExactNoise, JointSum, Ledger, public
from coterie.training.cohorts import Everyone, FixedSize, Poisson

pytestmark = pytest.mark.filterwarnings("ignore::coterie.errors.CoterieWarning")
EXACT = ct.Privacy(3.0, 1e-6, clip=0.5)
FEW = ct.LocalSGD(steps=1, lr=0.1, batch_size=None)


def run(fed: ct.Federation, task: Any, algorithm: Any = None, **options: Any) -> Any:
    how: dict[str, Any] = {"rounds": 2, "alone": False, "progress": False, "privacy": EXACT}
    return ct.fit(algorithm or ct.FedAvg(FEW), fed, task, **how | options).receipt


class Peeks(Channel):
    separate = True


def test_a_declaration_is_about_one_object_and_not_about_its_name(fed: ct.Federation, task: ct.Task) -> None:
    idle, one, other = (lambda live: None), Peeks(), Peeks()
    early = lambda live: live.stop() if live.history[-1]["loss"] < 100 else None  # noqa: E731  # of the same name
    assert run(fed, task, callbacks=[public(idle)], channels=[public(one)]).valid
    assert run(fed, task, callbacks=public([idle])).valid
    assert not run(fed, task, callbacks=[public(idle), early]).valid
    assert not run(fed, task, channels=[public(one), other]).valid


def test_a_part_made_of_a_release_is_paid_for_in_the_same_ledger(fed: ct.Federation, tmp_path: Any) -> None:
    """A start, or a setting, that another ledger paid for is not covered by this run's ε."""
    task = ct.Task(lambda: nn.Linear(4, 3))
    rows, file = np.random.default_rng(0).normal(size=(12, 15)), tmp_path / "all.sqlite"
    for path, valid in ((None, False), (file, True)):
        book = Ledger(ct.Privacy(9.0, 1e-6, clip=1.0, ledger=path)).book
        released = JointSum("warm", 15, 1.0, 20.0)(rows, ExactNoise(), book)
        warm = released.map(torch.from_numpy)
        start = warm.map(lambda v: {"weight": v[:12].reshape(3, 4).float(), "bias": v[12:].float()})
        steps = released.map(lambda v: ct.FedAvg(replace(FEW, lr=abs(float(v[0])))))
        budget = replace(EXACT, ledger=path, total_epsilon=20.0)
        for receipt in (run(fed, task, start=start, privacy=budget), run(fed, task, steps, privacy=budget)):
            assert receipt.valid == valid, receipt.reasons
            if valid:
                assert receipt.cumulative["epsilon"] > receipt.epsilon
            else:
                assert "'warm'" in receipt.reasons[0]


def test_best_of_chooses_on_clear_losses_and_is_no_private_run(fed: ct.Federation, task: ct.Task) -> None:
    with pytest.raises(ct.errors.ConfigError, match="clear training losses"):
        ct.best_of(2, ct.FedAvg(FEW), fed, task, rounds=1, alone=False, progress=False, privacy=EXACT)
    again = replace(EXACT, noise="simulation")
    ct.best_of(2, ct.FedAvg(FEW), fed, task, rounds=1, alone=False, progress=False, privacy=again)


def test_rows_that_were_looked_at_are_known_again_in_other_federations(make_fed: Any, task: ct.Task) -> None:
    simulated = replace(EXACT, noise="simulation")
    looks = {
        "grid": lambda f: ct.grid(ct.FedAvg(FEW), {"local.lr": [0.1, 0.2]}, f, task, rounds=1),
        "best_of": lambda f: ct.best_of(2, ct.FedAvg(FEW), f, task, rounds=1, alone=False, progress=False),
        "choose_clusters": lambda f: ct.choose_clusters(
            ct.IFCA(clusters=None), f, task, candidates=(1, 2), rounds=1, progress=False
        ),
        "fit_seeds": lambda f: ct.fit_seeds(
            ct.FedAvg(FEW), f, task, seeds=1, rounds=1, alone=False, progress=False, privacy=simulated
        ),
    }  # fmt: skip
    for seed, (name, look) in enumerate(looks.items()):
        fed = make_fed(seed=seed)
        look(fed)
        public_fed = fed.declare_public("classes", "kind")
        others = [public_fed, public_fed.subset(fed.clients), copy.deepcopy(public_fed), public_fed.holdout(0.3)]
        for other in (*others, make_fed(seed=seed).declare_public("classes", "kind")):
            receipt = run(other, task)
            assert not receipt.valid
            assert name in receipt.reasons[0]
    assert run(make_fed(seed=99).declare_public("classes", "kind"), task).valid


class Shifted(nn.Module):
    """A network that subtracts numbers of the user's."""

    shift = 0.3

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        moved: torch.Tensor = self.layer(x - self.shift)
        return moved


def base_rate() -> nn.Module:
    made = nn.Linear(4, 3)
    nn.init.constant_(made.bias, 0.731)  # as the mean of all clients' labels might be
    return made


def jittered() -> nn.Module:
    """Weights that were trained somewhere, with a little noise of the seed's."""
    made = nn.Linear(4, 3)
    with torch.no_grad():
        for p in made.parameters():
            p.mul_(0.05).add_(torch.arange(p.numel()).reshape(p.shape) / 10)
    return made


def test_networks_that_may_hold_a_mean_of_all_rows_need_to_be_declared(fed: ct.Federation) -> None:
    kept = nn.Linear(4, 3)
    borrowed = partial(tree_map, lambda _: copy.deepcopy(kept), torch.zeros(1))  # a function of this package's, and not
    for model in (Shifted, base_rate, borrowed, jittered):
        assert not run(fed, ct.Task(model)).valid, model
        assert run(fed, public(ct.Task(model))).valid
    usual = nn.Sequential(nn.Linear(4, 5), nn.PReLU(), nn.LayerNorm(5), nn.Linear(5, 3))
    assert run(fed, ct.Task(lambda: nn.Sequential(nn.Linear(4, 5), *usual[1:3], nn.Linear(5, 3)))).valid
    assert run(fed, ct.Task(ct.models.mlp(4, 6, 3))).valid


def test_layers_with_something_put_into_them_need_to_be_declared(fed: ct.Federation) -> None:
    """A hook, a function or a tensor in a layer of torch, and a traced network, carry numbers that no weight shows."""
    mean = fed.rows()[0].mean(0)
    seen = torch.from_numpy(mean)

    def made(change: Any) -> Any:
        def network() -> nn.Module:
            whole = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
            return change(whole) or whole

        return network

    def shifted(whole: nn.Module) -> None:
        plain = whole.forward
        whole.forward = lambda x: plain(x + seen)

    def biased(whole: nn.Module) -> None:
        del whole[1]._parameters["bias"]
        whole[1].bias = seen[:3]

    class Shifts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) + float(mean[0])

    changes = {
        "pre hook": lambda m: m.register_forward_pre_hook(lambda _, given: (given[0] + seen,)) and None,
        "hook": lambda m: m[1].register_forward_hook(lambda _, given, out: out + seen[:3]) and None,
        "forward": shifted,
        "attribute": biased,
        "traced": lambda m: torch.fx.symbolic_trace(Shifts()),
        "unsaved": lambda m: m.register_buffer("seen", seen.clone(), persistent=False),
    }
    for name, change in changes.items():
        assert not run(fed, ct.Task(made(change))).valid, name
        assert run(fed, public(ct.Task(made(change)))).valid, name
    receipt = run(fed, ct.Task(made(lambda m: None)))
    assert receipt.valid, receipt.reasons


def test_a_loss_of_this_package_that_was_given_rows_is_a_loss_of_the_users(fed: ct.Federation) -> None:
    weighted = partial(tree_map, lambda o, y: nn.functional.cross_entropy(o, y, torch.ones(3), reduction="none"))
    assert not run(fed, ct.Task(ct.models.mlp(4, 6, 3), weighted)).valid


def test_targets_standardised_by_all_rows_void_the_receipt(make_fed: Any) -> None:
    fed = make_fed(kind="regression")
    moved = replace(fed, y=5 * fed.y + 3).declare_public("kind")
    task = ct.Task(ct.models.mlp(4, 6, 1), "mse")
    assert run(moved, task).valid
    assert not run(moved, standardised(task, moved)).valid


def test_a_class_put_into_a_registry_is_still_the_users(
    fed: ct.Federation, task: ct.Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Mine(ct.FedAvg):
        pass

    monkeypatch.setitem(ct.algorithms.ALGORITHMS, "mine", Mine)
    assert not run(fed, task, Mine(FEW)).valid


def test_a_run_stopped_by_hand_has_no_number_of_rounds_fixed_in_advance(
    fed: ct.Federation, task: ct.Task, tmp_path: Any
) -> None:
    """Whoever presses Ctrl-C has seen clear losses. The run can be resumed, and its receipt is then valid."""

    def press(live: Any) -> None:
        if live.done == 2 and not live.about.get("stopped"):
            os.kill(os.getpid(), signal.SIGINT)

    receipt = run(fed, task, rounds=4, out=tmp_path, callbacks=[public(press)])
    assert not receipt.valid
    assert "stopped by hand after 2 of 4" in receipt.reasons[0]
    assert run(fed, task, rounds=4, out=tmp_path, resume=True).valid


class Federation(ct.Federation):
    """Its rows may be anybody's."""


class Task(ct.Task):
    """Its losses may be of other rows."""


class Budget(ct.Privacy):
    """Says that there is more."""

    @property
    def total(self) -> float:
        return 1e9


def remade(kind: Any, made: Any) -> Any:
    return kind(**{f.name: getattr(made, f.name) for f in fields(made) if f.init})


def test_a_subclass_of_what_holds_rows_task_or_budget_voids_the_receipt(fed: ct.Federation, task: ct.Task) -> None:
    assert run(fed, task).valid
    own = remade(Task, task)
    for made in (
        run(remade(Federation, fed), task),
        run(fed, own),
        run(fed, task, privacy=remade(Budget, EXACT)),
    ):
        assert [reason for reason in made.reasons if "with methods of the user's" in reason], made.reasons
    assert run(fed, public(own)).valid
    with pytest.raises(ct.errors.ConfigError, match="got Budget"):
        ct.BernoulliRates(privacy=remade(Budget, EXACT)).fit([[0, 1]] * 9)


def test_a_method_put_into_an_object_is_the_users(fed: ct.Federation, task: ct.Task) -> None:
    engine, algorithm, local, channel = (
        ct.engines.LocalEngine(),
        ct.FedAvg(FEW),
        replace(FEW),
        SignFlip([fed.clients[0]]),
    )
    assert run(fed, task, channels=[channel]).valid
    for made in (engine.run, algorithm.round, local.fit, channel.up):
        object.__setattr__(made.__self__, made.__name__, made)  # what it does is not known
    for how in ({"engine": engine}, {"algorithm": algorithm}, {"algorithm": ct.FedAvg(local)}, {"channels": [channel]}):
        assert not run(fed, task, **how).valid, how
    assert run(fed, task, public(ct.FedAvg(local)), channels=[public(channel)]).valid


def test_a_method_put_into_a_sampler_is_the_users(fed: ct.Federation, task: ct.Task) -> None:
    """It may choose the clients of a round by somebody's rows."""
    for sampler, method in ((Everyone(), "sample"), (FixedSize(2), "by_name"), (Poisson(0.5), "sample")):
        assert run(fed, task, cohort=sampler).valid
        object.__setattr__(sampler, method, lambda *_: np.arange(2 + int(fed.y[0])))
        assert "the cohort must be" in run(fed, task, cohort=sampler).reasons[0]


def test_rows_in_a_tensor_class_of_the_users_void_the_receipt(fed: ct.Federation, task: ct.Task) -> None:
    class Rows(torch.Tensor):
        pass

    assert "the federation's x must be" in run(replace(fed, x=fed.x.as_subclass(Rows)), task).reasons[0]
