"""IFCA as composed parts: the algorithm alone is short, parts are objects, and the last release's spelling still works."""

import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import coterie as ct
from coterie.algorithms.ifca import EarlyStop, FromSplit, FromUpdates, algorithm_2
from coterie.algorithms.ifca.resampling import AllRows
from coterie.cli.config import Config
from coterie.flower.wire import function_at, place_of

STEP = ct.LocalSGD(steps=1, lr=0.1, batch_size=None)
CENTRES = [[0.0], [1.0], [2.0], [90.0], [100.0], [101.0], [102.0]]


def test_the_algorithm_alone_has_at_most_a_hundred_lines_and_cites_the_lines_of_the_paper():
    text = Path(algorithm_2.__file__).read_text("utf-8")
    assert len(text.splitlines()) <= 100
    assert all(f"ine{number}" in text.replace(" ", "").replace("s", "") for number in (3, 6, 9, 11, 14, 15))
    for part in ("early_stop", "warm_start", "split_start", "robust_clusters", "composed"):
        assert part not in text, "a part knows Algorithm 2, and not the other way round"


def test_algorithm_2_runs_without_the_parts_around_it(world):
    """One round of the composed algorithm with the paper's start is one round of the algorithm alone."""
    fed, task = world.quadratics(CENTRES), world.linear(1)
    composed = ct.IFCA(clusters=2, local=STEP, start="random")
    alone = algorithm_2.Algorithm2(2, algorithm_2.ModelAveraging(STEP), AllRows())

    class Alone(ct.IFCA):
        def round(self, state, cohort):
            return (yield from alone.round(state, cohort))

    one, two = (
        ct.fit(a, fed, task, rounds=3, alone=False).state.models for a in (composed, Alone(clusters=2, start="random"))
    )
    assert torch.equal(one["weight"], two["weight"])


# ---- the spelling of the last release --------------------------------------------------------------------------------

FORMER = [
    ({"stop_after": 3}, {"stop": EarlyStop(3)}, r"In IFCA, stop_after is now stop=EarlyStop\(…\)"),
    ({"stop_after": None}, {}, "stop_after"),
    ({"stop_after": 3, "reopen_every": 5}, {"stop": EarlyStop(3, reopen_every=5)}, "reopen_every"),
    ({"reopen_every": 5}, {}, "reopen_every"),
    ({"probe_steps": 7}, {"start": FromUpdates(7)}, r"In IFCA, probe_steps is now start=FromUpdates\(probe_steps=…\)"),
    ({"probe_steps": 7, "start": "updates"}, {"start": FromUpdates(7)}, "probe_steps"),
    ({"probe_steps": 7, "start": "random"}, {"start": "random"}, "probe_steps"),
]


@pytest.mark.parametrize(("old", "new", "says"), FORMER, ids=str)
def test_settings_of_the_last_release_work_with_a_warning_that_names_the_new_spelling(old, new, says):
    with pytest.warns(ct.errors.CoterieWarning, match=says):
        assert ct.IFCA(clusters=2, local=STEP, **old) == ct.IFCA(clusters=2, local=STEP, **new)
    table = {"data": {"name": "heart"}, "algorithm": {"name": "ifca", "clusters": 2}}
    table["algorithm"] |= {k: "none" if v is None else v for k, v in old.items()}
    with pytest.warns(ct.errors.CoterieWarning, match=says):
        assert Config.parse(table).algorithm() == ct.IFCA(clusters=2, **new)


def test_former_settings_replace_those_of_an_algorithm():
    plain = ct.IFCA(clusters=2, stop=EarlyStop(2))
    with pytest.warns(ct.errors.CoterieWarning, match="one more release"):
        assert replace(plain, reopen_every=4).stop == EarlyStop(2, reopen_every=4)
    with pytest.warns(ct.errors.CoterieWarning):
        assert replace(plain, stop_after=3).stop == EarlyStop(3)


@pytest.mark.parametrize("wrong", [{"stop_after": 0}, {"stop_after": 2.5}, {"reopen_every": 0}, {"probe_steps": -1}])
def test_former_settings_are_checked_as_before(wrong):
    with pytest.warns(ct.errors.CoterieWarning), pytest.raises(ct.errors.ConfigError, match="whole number ≥ 1"):
        ct.IFCA(clusters=2, **wrong)


def test_only_local_is_given_by_position():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ct.IFCA(STEP, clusters=2) == ct.IFCA(clusters=2, local=STEP)
    for former in ((2, "gradient"), (2, "gradient", STEP), (2, "model", STEP, "random")):
        with pytest.warns(ct.errors.CoterieWarning, match="IFCA takes clusters=…, option=….* by name"):
            made = ct.IFCA(*former)
        assert made.option == former[1]
        assert made.local == (STEP if len(former) > 2 else ct.LocalSGD())
        assert made.start == (former[3] if len(former) > 3 else "updates")


# ---- objects as settings ---------------------------------------------------------------------------------------------


def test_a_configuration_names_the_parts_as_tables():
    table = {"data": {"name": "heart"}, "algorithm": {"name": "ifca", "clusters": 2}}
    table["algorithm"] |= {"stop": {"after": 3, "reopen_every": 5}, "start": {"probe_steps": 9}}
    made = Config.parse(table).algorithm()
    assert made == ct.IFCA(clusters=2, stop=EarlyStop(3, reopen_every=5), start=FromUpdates(9))
    table["algorithm"]["start"] = {"rounds": 4}
    assert Config.parse(table).algorithm().start == FromSplit(4)
    table["algorithm"] |= {"stop": "none", "start": "random"}
    assert Config.parse(table).algorithm() == ct.IFCA(clusters=2, start="random")


@pytest.mark.parametrize("start", ["updates", FromUpdates()])
def test_the_probe_takes_as_many_steps_as_asked(world, start):
    """40 steps of a tenth end near a client's centre; one step does not."""
    fed, task = world.quadratics(CENTRES), world.linear(1)
    far = ct.fit(ct.IFCA(clusters=2, local=STEP, start=start), fed, task, rounds=1, alone=False).state.models["weight"]
    near = ct.fit(ct.IFCA(clusters=2, local=STEP, start=FromUpdates(1)), fed, task, rounds=1, alone=False).state.models[
        "weight"
    ]
    assert float(far.max()) > 75
    assert float(near.max()) < 25


def test_a_start_from_a_split_trains_every_model_on_its_part_of_the_clients_whatever_their_losses(world):
    """Two rounds of the start: each model is the mean of its part's models. Then clients choose."""
    fed, task = world.quadratics(CENTRES), world.linear(1)

    def after(rounds, **options):
        algorithm = ct.IFCA(clusters=2, local=STEP, start=FromSplit(2), **options)
        return ct.fit(algorithm, fed, task, rounds=rounds, alone=False).state

    first, second, third = after(0), after(1), after(3)
    group = first.identity
    assert sorted(torch.bincount(group).tolist()) == [3, 4]
    centres = torch.tensor(CENTRES, dtype=torch.float64).flatten()
    for j in range(2):
        old, goal = float(first.models["weight"][j]), float(centres[group == j].mean())
        assert float(second.models["weight"][j]) == pytest.approx(old - 0.1 * 2 * (old - goal), abs=1e-9)
    assert torch.equal(second.identity, group)
    assert not second.started
    assert third.started
    assert (third.identity == -1).all()
    half = first.models["weight"].flatten() - 0.1 * 2 * (first.models["weight"].flatten() - centres[group == 0].mean())
    assert after(1, option="gradient", normalise="cluster").models["weight"][0].item() == pytest.approx(half[0].item())


def test_the_split_is_drawn_by_the_seed_and_ends_with_the_start(world):
    fed, task = world.quadratics(CENTRES), world.linear(1)
    algorithm = ct.IFCA(clusters=3, local=STEP, start="split")
    splits = [
        tuple(ct.fit(algorithm, fed, task, rounds=0, seed=s, alone=False).state.identity.tolist()) for s in range(4)
    ]
    assert len(set(splits)) > 1
    assert all(set(split) == {0, 1, 2} for split in splits)
    assert not ct.fit(algorithm, fed, task, rounds=19, alone=False).state.started
    assert ct.fit(algorithm, fed, task, rounds=20, alone=False).state.started
    alone = ct.fit(ct.IFCA(clusters=1, local=STEP, start="split"), fed, task, rounds=0, alone=False).state
    assert alone.started


def test_a_robust_rule_refuses_a_start_from_a_split():
    with pytest.raises(ct.errors.ConfigError, match="cannot start from a split"):
        ct.IFCA(clusters=2, start="split", aggregate=ct.robust.Median())


def test_a_private_run_does_without_the_parts_that_show_single_clients():
    for start in (FromUpdates(9), FromSplit(9)):
        private = ct.IFCA(clusters=2, start=start, stop=EarlyStop(3), option="gradient").private()
        assert private == ct.IFCA(clusters=2, start="random", option="gradient")


@pytest.mark.parametrize(
    "algorithm",
    [
        ct.IFCA(clusters=2),
        ct.IFCA(clusters=2, stop=EarlyStop(2), resample=2),
        ct.IFCA(clusters=2, start=FromSplit(3), stop=EarlyStop(2)),
        ct.IFCA(clusters=2, aggregate=ct.robust.Median()),
        ct.HypCluster(clusters=2),
        ct.HypCluster(clusters=2, aggregate=ct.robust.Median()),
        ct.FineTuned(base=ct.IFCA(clusters=2, stop=EarlyStop(1))),
    ],
    ids=str,
)
def test_a_deployed_client_finds_every_client_function_that_a_run_asks_with(world, algorithm):
    """Both sides build the algorithm from one file: the name that the server sends leads to an equal object's method."""
    asked = []

    class Watch(ct.exchange.channels.Channel):
        def ask(self, ask, where):
            asked.append(ask.phase)
            return ask

    ct.fit(algorithm, world.quadratics(CENTRES), world.linear(1), rounds=6, channels=[Watch()], alone=False)
    assert len({phase.__name__ for phase in asked}) >= 1
    for phase in asked:
        found = function_at(replace(algorithm), place_of(algorithm, phase))
        assert (found.__name__, found.__self__) == (phase.__name__, phase.__self__)
