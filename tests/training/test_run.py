"""fit: killed, interrupted, diverging, resumed; what it writes and what it says.

One file, as all tests share its ways to end a run early."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

import coterie as ct
from coterie.base.tree import Params, flatten
from coterie.exchange.messages import Ask, Cohort, Context, Exchange, Population, Up
from coterie.training import checkpoint
from coterie.training.run import Run

SGD = ct.LocalSGD(steps=3, lr=0.1, batch_size=8)

RUN = """
import sys, time
import numpy as np, torch
import coterie as ct
torch.set_num_threads(1)
rng = np.random.default_rng(0)
fed = ct.Federation.from_arrays(
    {f"c{i}": (rng.normal(size=(8 + 3 * i, 5)), np.arange(8 + 3 * i) % 3) for i in range(9)}
)
task = ct.Task(lambda: torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3)))
sgd = ct.LocalSGD(steps=4, lr=0.1, batch_size=4, momentum=0.5)
cases = {
    "fedavg": (ct.FedAvg(sgd, server_lr=0.9, server_momentum=0.5), dict(cohort=4, channels=[ct.exchange.Dropout(0.3)])),
    "local": (ct.Local(sgd), dict(cohort=0.5)),
}
def run(case, out, pause=0.0, rounds=12, **options):
    algorithm, settings = cases[case]
    return ct.fit(algorithm, fed, task, rounds=rounds, seed=7, out=out, checkpoint_every=2, alone=False,
                  callbacks=[lambda row, state: time.sleep(pause)], **settings, **options)
"""


def script(tail: str) -> list[str]:
    return [sys.executable, "-c", RUN + textwrap.dedent(tail)]


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + 60
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.01)


def everything(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a run on disk: server, clients (in the clients' order) and the history's losses."""
    tensors, about = checkpoint.read(folder / checkpoint.FILE)
    tensors["losses"] = torch.tensor([row["loss"] for row in about["history"]], dtype=torch.float64)
    models, _ = checkpoint.read(folder / "models.safetensors")
    return tensors | {f"result/{name}": t for name, t in models.items()}


@pytest.mark.parametrize("case", ["fedavg", "local"])
def test_killed_and_resumed_is_bit_identical(case: str, tmp_path: Path) -> None:
    scope: dict[str, Any] = {}
    exec(RUN, scope)
    scope["run"](case, tmp_path / "whole")

    torn = tmp_path / "torn"
    process = subprocess.Popen(
        script(f"run({case!r}, {str(torn)!r}, pause=0.1)"), text=True, stderr=subprocess.PIPE, env=os.environ
    )
    wait_for(torn / checkpoint.FILE, process)
    time.sleep(0.15)  # in the middle of a later round
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    _, about = checkpoint.read(torn / checkpoint.FILE)
    assert 0 < about["done"] < 12

    resumed = scope["run"](case, torn, resume=True)
    assert resumed.about["rounds"] == 12
    whole, again = everything(tmp_path / "whole"), everything(torn)
    assert list(whole) == list(again)  # also in the same order: sums over a model's entries depend on it
    for name, t in whole.items():
        assert t.dtype == again[name].dtype, name
        assert torch.equal(t.nan_to_num(-1), again[name].nan_to_num(-1)), name


def test_an_interrupted_baseline_is_not_passed_off_as_a_finished_one(
    fed: ct.Federation, task: ct.Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = ct.fit(ct.FedAvg(SGD), fed, task, rounds=3)
    original = Run.one_round

    def pressed(self: Run) -> dict[str, Any]:
        signal.raise_signal(signal.SIGINT)
        return original(self)

    monkeypatch.setattr(Run, "one_round", pressed)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # where the parent ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            result.evaluate()
    finally:
        signal.signal(signal.SIGINT, before)


# ---- folders ---------------------------------------------------------------------------------------------------------


def test_a_run_is_not_overwritten_unless_asked(fed: ct.Federation, task: ct.Task, tmp_path: Path) -> None:
    ct.fit(ct.Local(SGD), fed, task, rounds=1, out=tmp_path, alone=False)
    with pytest.raises(ct.errors.ConfigError, match=r"already holds a run\. Pass resume=True"):
        ct.fit(ct.Local(SGD), fed, task, rounds=1, out=tmp_path, alone=False)

    def stop(row: dict[str, Any], state: Any) -> None:
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError):
        ct.fit(ct.FedAvg(SGD), fed, task, rounds=1, out=tmp_path, overwrite=True, callbacks=[stop])
    with pytest.raises(
        ct.errors.ConfigError, match="no finished result"
    ):  # never the old run's under the new one's name
        ct.Result.load(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"algorithm": ct.FedAvg(replace(SGD, lr=0.2))},
        {"seed": 1},
        {"cohort": 3},
        {"channels": [ct.exchange.Dropout(0.5)]},
        {"task": ct.Task(lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)))},
        {"federation": "labels"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_resuming_with_other_settings_is_refused(
    change: dict[str, Any], fed: ct.Federation, task: ct.Task, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"algorithm": ct.FedAvg(SGD), "federation": fed, "task": task, "alone": False}
    ct.fit(**options, rounds=1, out=tmp_path)
    if "federation" in change:
        y = fed.y.clone()
        y[:2] = y[:2].flip(0)
        change = {"federation": replace(fed, y=y)}
    with pytest.raises(ct.errors.ConfigError, match="other settings or data"):
        ct.fit(**(options | change), rounds=2, out=tmp_path, resume=True)


class Plain:
    """A sampler without a repr of its own."""

    def sample(self, federation: ct.Federation, seed: int, round: int) -> Any:
        return np.arange(3)


def test_an_object_elsewhere_in_memory_is_the_same_setting(fed: ct.Federation, task: ct.Task, tmp_path: Path) -> None:
    ct.fit(ct.Local(SGD), fed, task, rounds=1, out=tmp_path, cohort=Plain(), alone=False)
    result = ct.fit(ct.Local(SGD), fed, task, rounds=2, out=tmp_path, cohort=Plain(), alone=False, resume=True)
    assert len(result.history) == 2


def test_resume_needs_a_folder_with_a_readable_checkpoint(fed: ct.Federation, task: ct.Task, tmp_path: Path) -> None:
    with pytest.raises(ct.errors.ConfigError, match="Pass out="):
        ct.fit(ct.Local(SGD), fed, task, resume=True)
    with pytest.raises(ct.errors.ConfigError, match="no checkpoint"):
        ct.fit(ct.Local(SGD), fed, task, resume=True, out=tmp_path)
    (tmp_path / checkpoint.FILE).write_bytes(b"half a file")
    with pytest.raises(ct.errors.ConfigError, match="not a readable checkpoint"):
        ct.fit(ct.Local(SGD), fed, task, resume=True, out=tmp_path)


def test_bad_settings_are_refused(fed: ct.Federation, task: ct.Task) -> None:
    for wrong, message in (
        ({"rounds": -1}, "rounds"),
        ({"engine": "gpu"}, "one of"),
        ({"cohort": "all"}, "cohort must"),
    ):
        with pytest.raises(ct.errors.ConfigError, match=message):
            ct.fit(ct.Local(SGD), fed, task, **wrong)  # type: ignore[arg-type]


# ---- divergence ------------------------------------------------------------------------------------------------------


def exploding(make_fed: Any, client: int | None = None) -> ct.Federation:
    """One client's data (None: everybody's) make any step with lr = 0.1 explode after a few rounds."""
    fed: ct.Federation = make_fed(kind="regression", ids=list(range(100, 112)))
    x = fed.x.clone()
    start, end = (0, len(x)) if client is None else fed.offsets[client : client + 2]
    x[start:end] *= 40.0
    return replace(fed, x=x)


@pytest.mark.parametrize("engine", ["local", "loop"])
def test_one_client_that_explodes_is_lost_and_named_and_ends_nothing(
    engine: str, make_fed: Any, number_task: ct.Task, tmp_path: Path
) -> None:
    sgd = ct.LocalSGD(steps=3, lr=0.1, batch_size=None)
    fed, options = exploding(make_fed, 4), {"out": tmp_path, "engine": engine, "alone": False}
    result = ct.fit(ct.Local(sgd), fed, number_task, rounds=30, **options)
    dropped = result.about["dropped"]
    assert {(d["phase"], d["client"]) for d in dropped} == {("train", 104)}
    assert [d["round"] for d in dropped] == list(range(dropped[0]["round"], 31))  # never again a finite step
    assert result.history["lost"].sum() == len(dropped) < 30
    assert ct.Result.load(tmp_path).about["dropped"] == dropped
    states = flatten(result.evaluation.env.states.values)
    assert all(bool(torch.isfinite(t).all()) for t in states.values())
    again = ct.fit(ct.Local(sgd), fed, number_task, rounds=31, resume=True, **options)
    assert len(again.about["dropped"]) == len(dropped) + 1


@pytest.mark.parametrize("engine", ["local", "loop"])
def test_divergence_names_round_client_and_what_to_lower(
    engine: str, make_fed: Any, number_task: ct.Task, tmp_path: Path
) -> None:
    fed = exploding(make_fed)
    sgd = ct.LocalSGD(steps=3, lr=0.1, batch_size=None)
    with pytest.raises(ct.errors.Diverged) as caught:
        ct.fit(ct.Local(sgd), fed, number_task, rounds=50, out=tmp_path, engine=engine)
    message = str(caught.value)
    found = re.search(r"Round (\d+): 'train' gave NaN or infinite numbers at client 10\d\. Lower the learning rate "
                      r"\(now 0\.1\)", message)  # fmt: skip
    assert found, message
    good = int(found[1]) - 1
    assert good > 0
    assert f"(round {good})" in message
    kept = caught.value.result
    assert len(kept.history) == good
    tensors, about = checkpoint.read(tmp_path / checkpoint.FILE)
    assert about["done"] == good
    assert all(bool(torch.isfinite(t).all()) for t in tensors.values() if t.is_floating_point())
    before = ct.fit(ct.Local(sgd), fed, number_task, rounds=good, engine=engine)  # states rolled back, all of them
    one, two = (flatten(r.evaluation.env.states.values) for r in (kept, before))
    assert all(torch.equal(one[name], two[name]) for name in two)


def test_a_server_that_diverges_says_so(fed: ct.Federation, task: ct.Task) -> None:
    with pytest.raises(ct.errors.Diverged, match=r"the server's update' gave NaN"):
        ct.fit(ct.FedAvg(SGD, server_lr=1e39), fed, task, rounds=3)


# ---- what comes out --------------------------------------------------------------------------------------------------


def test_every_client_is_evaluated_and_gains_have_the_right_sign(fed: ct.Federation, task: ct.Task) -> None:
    result = ct.fit(ct.FedAvg(SGD), fed, task, rounds=6, cohort=2)
    table = result.evaluate("equal budget")
    assert list(table.index) == list(fed.clients)
    assert table.index.name == "client"
    assert list(table.columns) == ["accuracy", "log_loss", "alone", "gain", "cluster", "met", "n_train", "n_test"]
    np.testing.assert_allclose(table["gain"], table["accuracy"] - table["alone"])
    alone = ct.fit(ct.Local(SGD), fed, task, rounds=1, alone=False)  # 6 rounds of 2 of 12 clients: one each
    assert table["alone"].equals(alone.evaluate()["accuracy"].rename("alone"))
    lower = ct.fit(ct.FedAvg(SGD), fed, replace(task, metric=("log_loss", "accuracy")), rounds=6, cohort=2).evaluate()
    np.testing.assert_allclose(lower["gain"], lower["alone"] - lower["log_loss"])
    given = ct.fit(ct.FedAvg(SGD), fed, task, rounds=6, cohort=2, alone=alone).evaluate()
    assert given["gain"].equals(table["gain"])
    assert ct.fit(ct.FedAvg(SGD), fed, task, rounds=1, alone=False).evaluate()["gain"].isna().all()


def test_scores_are_those_of_the_models_on_the_test_rows(fed: ct.Federation, task: ct.Task) -> None:
    result = ct.fit(ct.FineTuned(base=ct.FedAvg(SGD)), fed, task, rounds=2, cohort=3)
    for client in fed.clients:
        x, y = fed.test(client)
        outputs = result.model(client)(x).detach()
        assert result.evaluate().loc[client, "accuracy"] == pytest.approx(
            float((outputs.argmax(1) == y).float().mean())
        )
        expected = float(nn.functional.cross_entropy(outputs, y))
        assert result.evaluate().loc[client, "log_loss"] == pytest.approx(expected, rel=1e-5)


def test_history_counts_rounds_clients_lost_and_bytes(fed: ct.Federation, task: ct.Task) -> None:
    result = ct.fit(ct.FedAvg(SGD), fed, task, rounds=6, cohort=8, channels=[ct.exchange.Dropout(0.4)])
    history = result.history
    assert list(history.columns) == ["round", "loss", "clients", "lost", "bytes_down", "bytes_up", "seconds"]
    assert history["round"].tolist() == [1, 2, 3, 4, 5, 6]
    assert (history["clients"] == 8).all()
    assert 0 < history["lost"].sum() < 48
    model = 4 * sum(p.numel() for p in task.module().parameters())
    assert (history["bytes_up"] == (8 - history["lost"]) * model).all()
    assert (history["bytes_down"] == history["bytes_up"]).all()
    local = ct.fit(ct.Local(SGD), fed, task, rounds=1).history
    assert local["bytes_up"].tolist() == local["bytes_down"].tolist() == [0]
    assert list(ct.fit(ct.Local(SGD), fed, task, rounds=0).history.columns) == list(history.columns)


def test_loss_is_the_mean_over_clients_of_the_loss_met_while_training(fed: ct.Federation, task: ct.Task) -> None:
    sgd = ct.LocalSGD(steps=1, lr=0.1, batch_size=None)
    result = ct.fit(ct.FedAvg(sgd), fed, task, rounds=1)
    start = task.init(0)
    losses = [float(task.sample_losses(task.outputs(start, x), y).mean()) for x, y in map(fed.train, fed.clients)]
    assert result.history["loss"][0] == pytest.approx(np.mean(losses), rel=1e-6)


def test_callbacks_and_periodic_evaluation(fed: ct.Federation, task: ct.Task) -> None:
    seen: list[tuple[int, Any]] = []
    result = ct.fit(
        ct.FedAvg(SGD), fed, task, rounds=5, evaluate_every=2, callbacks=[lambda row, s: seen.append((row["round"], s))]
    )
    assert [r for r, _ in seen] == [1, 2, 3, 4, 5]
    assert seen[-1][1] is result.state
    assert result.history["test_accuracy"].notna().tolist() == [False, True, False, True, True]
    assert result.history["test_accuracy"].iloc[-1] == pytest.approx(result.evaluate()["accuracy"].mean())
    unwatched = ct.fit(ct.FedAvg(SGD), fed, task, rounds=5)
    assert result.history["loss"].equals(unwatched.history["loss"])


@dataclass(frozen=True)
class Counts:
    n: torch.Tensor


@dataclass(frozen=True)
class Forgetful(ct.exchange.Algorithm):
    """Draws a number at first contact; asks nothing in odd rounds; keeps a running sum on the client."""

    local: ct.LocalSGD = field(default_factory=ct.LocalSGD)

    def init(self, task: ct.Task, population: Population, seed: int, start: Params) -> Counts:
        return Counts(torch.zeros(()))

    def client(self, ctx: Context) -> dict[str, Any]:
        return {"z": ctx.normal("start", 2), "a": {"sum": ctx.n * 0, "model": ctx.initial}}

    def round(self, state: Counts, cohort: Cohort) -> Exchange[Counts]:
        if cohort.round % 2:
            return Counts(state.n + 100)
        reply = yield Ask(self.count, cohort.clients, reduce=ct.exchange.SumBy())
        return Counts(state.n + float(reply.count.sum()))

    def count(self, ctx: Context) -> Up:
        entries = {"a": {"model": ctx.state["a"]["model"], "sum": ctx.state["a"]["sum"] + ctx.n}, "z": ctx.state["z"]}
        return Up(send={}, state=entries)  # the entries in another order than at first contact

    def personal(self, ctx: Context, state: Counts) -> Params:
        model: Params = ctx.state["a"]["model"]
        return model


def test_a_round_may_ask_nothing_and_entries_of_a_state_go_by_name(fed: ct.Federation, task: ct.Task) -> None:
    result = ct.fit(Forgetful(), fed, task, rounds=3, cohort=5)
    assert float(result.state.n) == 5 + 100 + 5
    live = result.evaluation
    everyone = live.ready(live.everyone())
    state = live.env.states.get(everyone)
    asked = sum(np.isin(everyone, ct.training.FixedSize(5).sample(fed, 0, r)).astype(int) for r in (0, 2))
    assert state["a"]["sum"].tolist() == (asked * fed.n_train).tolist()
    early = ct.fit(Forgetful(), fed, task, rounds=1).evaluation  # a state does not depend on when it was made
    assert early is not None
    assert torch.equal(early.env.states.get(everyone)["z"], state["z"])
    assert len(state["z"].unique()) == 2 * len(fed)


def test_states_made_after_a_resume_go_by_name(fed: ct.Federation, task: ct.Task, tmp_path: Path) -> None:
    whole = ct.fit(Forgetful(), fed, task, rounds=5, cohort=3, alone=False).evaluation
    ct.fit(Forgetful(), fed, task, rounds=1, cohort=3, out=tmp_path, alone=False)
    kept, about = checkpoint.read(tmp_path / checkpoint.FILE)
    assert about["done"] == 1
    assert int((kept["clients/row"] >= 0).sum()) == 3  # states are made at first contact, not before
    resumed = ct.fit(Forgetful(), fed, task, rounds=5, cohort=3, resume=True, out=tmp_path, alone=False).evaluation
    assert whole is not None
    assert resumed is not None
    one, two = (flatten(live.env.states.get(live.everyone())) for live in (whole, resumed))
    assert all(torch.equal(one[name], two[name]) for name in one)


@dataclass(frozen=True)
class Partial(Forgetful):
    def count(self, ctx: Context) -> Up:
        return Up(send={}, state={"z": ctx.state["z"]})


def test_a_state_with_entries_missing_is_refused(fed: ct.Federation, task: ct.Task) -> None:
    with pytest.raises(ct.errors.ClientError, match="needs the entries of its first one"):
        ct.fit(Partial(), fed, task, rounds=1)


def test_progress_is_silent_unless_at_a_terminal(
    fed: ct.Federation, task: ct.Task, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ct.fit(ct.Local(SGD), fed, task, rounds=2)
    assert capfd.readouterr() == ("", "")
    screen = io.StringIO()
    monkeypatch.setattr(
        "coterie.training.progress.Console", lambda stderr: Console(file=screen, force_terminal=True, width=80)
    )
    ct.fit(ct.Local(SGD), fed, task, rounds=2)
    assert re.search(r"round.*2/2.*loss \d\.\d", screen.getvalue())
