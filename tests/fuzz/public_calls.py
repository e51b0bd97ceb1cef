"""One valid call of everything public, found by introspection; a table gives the arguments that cannot be guessed.

`CALLS` maps a name to a `Call`: what is called, with which valid arguments, and what is done with the result, because many
settings show only in use. `RECORDS` are classes that coterie makes and users read; nobody is meant to call them.
"""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, wraps
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.base import clone

import coterie as ct
from coterie import estimation, privacy
from coterie.comparison import exact as decision

RNG = np.random.default_rng(0)
X = RNG.normal(size=(48, 2))
Y = np.tile([0, 1], 24)
OWNER = np.repeat(["a", "b", "c", "d"], 12)
PAIRS = {name: (X[name == OWNER].astype(np.float32), Y[name == OWNER]) for name in "abcd"}
FRAME = pd.DataFrame({"u": X[:, 0], "v": X[:, 1], "y": Y, "c": OWNER})
COUNTS = RNG.poisson(3.0, size=(12, 6)) + 1
PRIVATE = ct.Privacy(epsilon=5.0, delta=1e-3, clip=1.0, noise="simulation")
GAME = ct.incentives.PricingGame(0.5, 1.0, 2.0, 0.1, 0.1)


@cache
def folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="calls-"))


@cache
def federation() -> ct.Federation:
    return ct.Federation.from_arrays(PAIRS, clusters={"a": 0, "b": 0, "c": 1, "d": 1})


def task() -> ct.Task:
    return ct.Task(ct.models.linear(2, 2))


@cache
def table_file() -> str:
    FRAME.to_csv(folder() / "t.csv", index=False)
    return str(folder() / "t.csv")


@cache
def result() -> ct.Result:
    return ct.fit(ct.FedAvg(), federation(), task(), rounds=1)


@cache
def small_decision() -> Any:
    return ct.comparison.decide(X, Y, OWNER, kind="classification", folds=2, repeats=1)


def learn(algorithm: Any) -> None:
    data = federation().subset(["a", "c"]) if isinstance(algorithm, ct.DefectionFree) else federation()
    ct.fit(algorithm, data, task(), rounds=1).evaluate()


def aggregate(rule: Any) -> None:
    rule(torch.randn(8, 3, generator=torch.Generator().manual_seed(0)), key=torch.tensor(3), start=torch.zeros(3))


def attack(channel: Any) -> None:
    ct.fit(ct.FedAvg(aggregate=ct.robust.Median()), federation(), task(), rounds=1, channels=[channel])


def build(factory: Any) -> None:
    factory()


def schedule(given: Any) -> None:
    learn(ct.FedAvg(ct.LocalSGD(steps=1, schedule=given)))


def sample(sampler: Any) -> None:
    sampler.sample(federation(), 0, 1)


def histograms(model: Any) -> None:
    model.fit(COUNTS).personalise(COUNTS)


def means(model: Any) -> None:
    model.fit([x for x, _ in PAIRS.values()])


def regressions(model: Any) -> None:
    model.fit(X, Y, groups=OWNER).predict(X, groups=OWNER)


def routed(model: Any) -> None:
    model.fit(X, Y, clients=OWNER).predict(X, clients=OWNER)


def noisy(mechanism: Any) -> None:
    mechanism(np.zeros((4, mechanism.dimension)), privacy.make_noise("simulation", 0))


def nothing(made: Any) -> None:
    if inspect.isgenerator(made):
        list(made)


@dataclass(frozen=True)
class Call:
    """`use` is what shows whether a setting works; `without` are arguments nobody is meant to pass."""

    target: Callable[..., Any]
    valid: dict[str, Any] = field(default_factory=dict)
    use: Callable[[Any], Any] = nothing
    without: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        known = inspect.signature(self.target).parameters
        names = [n for n, p in known.items() if p.kind not in kinds and not n.startswith("_")]
        return [n for n in dict.fromkeys([*names, *self.valid]) if n not in (*self.without, "self")]

    def takes_function(self, argument: str) -> bool:
        """Whether a function is a right value; what a user's own function then does is the user's affair."""
        parameter = inspect.signature(self.target).parameters.get(argument)
        words = str(parameter.annotation) if parameter else ""
        return any(word in words for word in FUNCTIONS) or callable(self.valid.get(argument))

    @property
    def trains(self) -> bool:
        return self.use in (learn, attack, schedule)

    def make(self, **changed: Any) -> Any:
        return self.target(**(self.valid | changed))

    def run(self, **changed: Any) -> Any:
        made = self.make(**changed)
        self.use(made)
        return made


FUNCTIONS = (
    "Callable",
    "Aggregator",
    "RadiusRule",
    "Progress",
    "Note",
    "Scheme",
    "Book",
    "SampleLoss",
    "Schedule",
    "Split",
)
RECORDS = set(
    """
    Advice Choice Coalition Cohort Comparison Context Coalitions Decision Evaluation Grid Participation Reply
    Result Run Seeds Audit Plan Receipt Signal Predictor Scores Table Verdict Bargain Climb Collaboration
    Commitment DeviationGains Equilibrium Pair Prices Sales Simulation View RevenueLedger Elections UserTokens
    Constants ManyBargain
    Guarded Told Truth Blobs Partition Population Env Composition Booking Mixed Firm Ask Up From Event Released
    """.split()  # noqa: SIM905
)
PROTOCOLS = {
    "Algorithm",
    "Aggregator",
    "Buyers",
    "Seller",
    "Noise",
    "Attack",
    "Channel",
    "Where",
    "Engine",
    "LocalSteps",
}
TOOLS = {
    "joined",
    "named_like",
    "one_per",
    "row",
    "stack",
    "take",
    "tree_map",
    "features",
    "split",
    "Exchange",
    "Params",
    "Tree",
}  # of client functions


def offered(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """The public functions and classes of a module."""
    listed = getattr(module, "__all__", None)
    for name in listed or [n for n, o in vars(module).items() if getattr(o, "__module__", "") == module.__name__]:
        thing = getattr(module, name)
        if name.startswith("_") or not callable(thing) or inspect.ismodule(thing):
            continue
        if isinstance(thing, type) and issubclass(thing, Exception):
            continue
        yield name, thing


MODULES = {
    "": ct,
    "engines.": ct.engines,
    "exchange.": ct.exchange,
    "histograms.": ct.histograms,
    "training.": ct.training,
    "privacy.": privacy,
    "estimation.": estimation,
    "decision.": decision,
    "incentives.": ct.incentives,
    "datasets.": ct.datasets,
    "robust.": ct.robust,
    "models.": ct.models,
    "schedules.": ct.schedules,
    "attacks.": ct.exchange.attacks,
}
STARTS_PROCESSES = {"RayEngine"}
HEAVY_DATA = {"cifar10", "femnist", "mnist", "har", "train_tickets", "user_tokens"}

VALID: dict[str, tuple[dict[str, Any], Callable[[Any], Any]]] = {
    "advise": ({"samples": [x for x, _ in PAIRS.values()], "resamples": 20}, nothing),
    "best_of": ({"restarts": 1, "algorithm": ct.FedAvg(), "federation": federation(), "rounds": 1}, nothing),
    "check": ({"algorithm": ct.FedAvg(local=ct.LocalSGD(steps=1, lr=0.1))}, nothing),
    "choose_clusters": (
        {"algorithm": ct.IFCA(), "federation": federation(), "candidates": [1, 2], "rounds": 1},
        nothing,
    ),
    "compare": (
        {"data": federation(), "task": task(), "algorithms": ["local"], "rounds": 1, "seeds": 1},
        nothing,
    ),
    "decision.decide": (
        {"X": X, "y": Y, "clients": OWNER, "kind": "classification", "folds": 2, "repeats": 1},
        nothing,
    ),
    "fit": (
        {"algorithm": ct.FedAvg(), "federation": federation(), "task": task(), "rounds": 1},
        lambda made: made.evaluate(),
    ),
    "fit_seeds": ({"algorithm": ct.FedAvg(), "federation": federation(), "seeds": 1, "rounds": 1}, nothing),
    "grid": (
        {
            "algorithm": ct.FedProx(),
            "settings": {"mu": [0.1]},
            "federation": federation(),
            "rounds": 1,
            "every": 1,
            "patience": 1,
        },
        nothing,
    ),
    "table": ({"runs": {"one": result()}, "test": "paired"}, nothing),
    "histograms.save_counts": ({"folder": folder() / "counts", "blocks": [COUNTS]}, nothing),
    "robust.threshold_clustering": ({"points": X, "centers": X[:2]}, nothing),
    "robust.ThresholdClustering": ({"clusters": 2}, lambda made: made.fit(X)),
    "robust.Fixed": ({"radius": 1.0}, lambda rule: ct.robust.threshold_clustering(X, X[:2], rule)),
    "robust.Percentile": ({"p": 20.0}, lambda rule: ct.robust.threshold_clustering(X, X[:2], rule)),
    "robust.Theory": ({"delta": 1.0, "sigma": 1.0, "separation": 3.0}, nothing),
    "robust.Proof": ({"delta": 1.0, "sigma": 1.0, "separation": 3.0, "members": 4}, nothing),
    "exchange.Dropout": ({"rate": 0.1}, attack),
    "FedBN": ({"keep": ["1.bias"]}, learn),
    "training.fit_guarded": (
        {"algorithm": ct.FedAvg(), "federation": federation(), "task": task(), "rounds": 1},
        lambda made: made.scores(),
    ),
    "estimation.VectorQuantiser": ({"points": 3, "radius": 9.0}, lambda made: made(X, np.random.default_rng(0))),
    "histograms.discover_tokens": ({"texts": [["a", "b"], ["a"]], "privacy": PRIVATE, "most": 2}, nothing),
    "histograms.count_tokens": ({"texts": [["a", "b"], ["a"]], "tokens": ["a"]}, nothing),
    "incentives.nash_bargain": ({"qualities": [0.1, 0.5], "q_max": 1.0}, nothing),
    "incentives.defection_free_path": ({"qualities": [0.1, 0.5], "q_max": 1.0, "rounds": 3}, nothing),
    "incentives.bargain_lying_gain": ({"qualities": [0.1, 0.5], "firm": 0, "claim": 0.2}, nothing),
    "privacy.adaped_epsilon": (
        {"noise": 2.0, "clip": 1.0, "delta": 1e-4, "rounds": 4, "cohort": 2, "clients": 6, "steps": 3},
        nothing,
    ),
    "privacy.SetUnion": (
        {"name": "s", "most": 2, "n_users": 4, "noise_multiplier": 1.0, "failure": 1e-4},
        lambda made: made([["a"], ["b"]], privacy.make_noise("simulation", 0)),
    ),
    "training.gradient_constants": (
        {"federation": federation(), "task": task(), "batch_size": 2, "batches": 2},
        nothing,
    ),
    "training.clustering_for": ({"federation": federation(), "task": task(), "lr": 0.1}, nothing),
    "robust.constants": ({"gradients": torch.ones(3, 2, 4), "batch": 2}, nothing),
    "training.FixedSize": ({"size": 2}, sample),
    "training.Poisson": ({"rate": 0.5}, sample),
    "training.Everyone": ({}, sample),
    "estimation.Quantiser": ({"bits": 3, "radius": 9.0}, lambda made: made(X, np.random.default_rng(0))),
    "Task": ({"model": ct.models.linear(2, 2)}, lambda made: ct.fit(ct.FedAvg(), federation(), made, rounds=1)),
    "training.TensorBoard": ({"where": folder() / "board"}, nothing),
    "Scorer": ({"given": "accuracy"}, nothing),
    "Privacy": ({"epsilon": 5.0, "delta": 1e-3, "clip": 1.0}, nothing),
    "histograms.TokenReduction": ({"keep": 2}, lambda made: histograms(ct.HistogramMixture(2, reduction=made))),
    "engines.LocalEngine": ({}, lambda made: ct.fit(ct.FedAvg(), federation(), task(), rounds=1, engine=made)),
    "engines.LoopEngine": ({}, lambda made: ct.fit(ct.FedAvg(), federation(), task(), rounds=1, engine=made)),
    "LocalSGD": ({"steps": 1}, lambda made: learn(ct.FedAvg(made))),
    "LocalAdam": ({"steps": 1}, lambda made: learn(ct.FedAvg(made))),
    "exchange.MeanBy": ({}, nothing),
    "exchange.SumBy": ({}, nothing),
    "BernoulliRates": ({}, lambda made: made.fit([3, 4, 5], [9, 9, 9])),
    "GaussianMeans": ({}, means),
    "MixtureMeans": ({"n_init": 1, "max_iter": 5}, means),
    "LinearModels": ({}, regressions),
    "LogisticModels": ({}, regressions),
    "CoterieRegressor": ({"client": None, "family": "linear"}, routed),
    "CoterieClassifier": ({"client": None, "family": "linear"}, routed),
    "estimation.MixtureModels": ({"rounds": 2}, regressions),
    "HistogramMixture": ({"clusters": 2, "max_iter": 3}, histograms),
    "histograms.IFCAHistograms": ({"clusters": 2, "max_iter": 3}, histograms),
    "histograms.DirichletMultinomialMixture": ({"clusters": 2, "max_iter": 3}, histograms),
    "histograms.FedAvgHistogram": ({}, histograms),
    "histograms.LocalHistograms": ({}, histograms),
    "estimation.advise": ({"samples": [x for x, _ in PAIRS.values()], "resamples": 20}, nothing),
    "estimation.clipping_radius": (
        {"clients": 9, "samples": 5.0, "prior_variance": 1.0, "noise_variance": 1.0},
        nothing,
    ),
    "estimation.least_risk": ({"samples": 5.0, "prior_variance": 1.0, "noise_variance": 1.0, "clients": 9}, nothing),
    "estimation.rates_bound": ({"prior": (4.0, 2.0), "samples": 5, "clients": 9}, nothing),
    "estimation.norm_bound": ({"clients": 9, "samples": 5.0, "noise_variance": 1.0, "center_bound": 1.0}, nothing),
    "privacy.ExactNoise": ({}, nothing),
    "privacy.GroupSums": (
        {"name": "g", "n_groups": 2, "dimension": 2, "clip": 1.0, "noise_multiplier": 1.0},
        lambda made: made(X, Y, privacy.make_noise("simulation", 0)),
    ),
    "privacy.JointSum": ({"name": "j", "dimension": 2, "clip": 1.0, "noise_multiplier": 1.0}, noisy),
    "privacy.Lattice": ({"clip": 1.0, "dimension": 2}, lambda made: made.round(X)),
    "privacy.Ledger": ({"privacy": PRIVATE}, nothing),
    "privacy.Line": ({"name": "l", "share": 1.0}, lambda line: privacy.make_plan(1.0, 1e-5, [line])),
    "privacy.LocalGaussian": ({"name": "l", "dimension": 2, "radius": 1.0, "noise_multiplier": 1.0}, noisy),
    "privacy.UnitMoments": (
        {"name": "u", "folds": 2, "columns": 2, "clip": 1.0, "noise_multiplier": 1.0},
        lambda made: made.partial(X, np.repeat(range(4), 12), np.array([0, 1, 0, 1])),
    ),
    "privacy.NoisyPower": (
        {"name": "p", "dimension": 2, "n_components": 1, "clip": 1.0, "noise_multiplier": 1.0, "iterations": 1},
        lambda made: made(X, privacy.make_noise("simulation", 0)),
    ),
    "privacy.OneBit": (
        {"name": "b", "epsilon": 1.0},
        lambda made: made(X[:, 0], privacy.make_noise("simulation", 0)),
    ),
    "privacy.PointClaim": ({"claimed_epsilon": 1.0, "claimed_delta": 1e-5}, nothing),
    "privacy.Quantile": (
        {"name": "q", "level": 0.5, "low": 0.1, "high": 9.0, "noise_multiplier": 1.0, "n_users": 48, "steps": 2},
        lambda made: made(np.abs(X[:, 0]), privacy.make_noise("simulation", 0)),
    ),
    "privacy.SimulationNoise": ({"seed": 0}, lambda made: made.integers(3, 1.0) if hasattr(made, "integers") else None),
    "privacy.adopt": ({"file": folder() / "nowhere.sqlite"}, nothing),
    "privacy.audit": (
        {
            "worlds": privacy.mechanism_worlds(privacy.JointSum("j", 1, 1.0, 1.0), "simulation"),
            "claim": (1.0, 1e-5),
            "trials": 200,
        },
        nothing,
    ),
    "privacy.budget_text": ({"epsilon": 1.0, "delta": 1e-5, "rounds": 3}, nothing),
    "privacy.clip_rows": ({"rows": X, "bound": 1.0}, nothing),
    "privacy.combine": ({"function": lambda: 3}, nothing),
    "privacy.compose": (
        {"events": [privacy.JointSum("j", 1, 1.0, 1.0).event("exact")]},
        lambda made: made.epsilon(1e-5),
    ),
    "privacy.delta": ({"noise_multiplier": 1.0, "epsilon": 1.0, "rounds": 3}, nothing),
    "privacy.epsilon": ({"noise_multiplier": 1.0, "delta": 1e-5, "rounds": 3}, nothing),
    "privacy.event_worlds": ({"events": [privacy.JointSum("j", 1, 1.0, 1.0).event("exact")]}, nothing),
    "privacy.make_noise": ({"name": "simulation", "seed": 0}, nothing),
    "privacy.make_plan": ({"epsilon": 1.0, "delta": 1e-5, "lines": [privacy.Line("l", 1.0)]}, nothing),
    "privacy.mechanism_worlds": ({"mechanism": privacy.JointSum("j", 1, 1.0, 1.0), "noise": "simulation"}, nothing),
    "privacy.mu_of": ({"epsilon": 1.0, "delta": 1e-5}, nothing),
    "privacy.noise_multiplier": ({"epsilon": 1.0, "delta": 1e-5, "rounds": 3}, nothing),
    "privacy.non_private": ({"value": 3, "reason": "a test"}, nothing),
    "privacy.public": ({"value": 3}, nothing),
    "privacy.rate_moments": (
        {"successes": [3, 4, 5, 6], "trials": 9, "epsilon": 1.0, "noise": privacy.make_noise("simulation", 0)},
        nothing,
    ),
    "privacy.signal": ({"noise_multiplier": 1.0, "dimension": 3, "clients": 9}, nothing),
    "privacy.write_receipt": ({"ledger": privacy.Ledger(PRIVATE), "values": [], "n_users": 9}, nothing),
    "decision.coalitions": ({"X": X, "y": Y, "clients": OWNER, "kind": "classification", "folds": 3}, nothing),
    "decision.decide_table": (
        {"table": decision.make_table(X, Y, OWNER, "classification", None), "folds": 2, "repeats": 1},
        nothing,
    ),
    "decision.distinguish": ({"decision": small_decision()}, nothing),
    "decision.evaluate": (
        {"table": decision.make_table(X, Y, OWNER, "classification", None), "folds": 2},
        nothing,
    ),
    "decision.from_evaluation": (
        {
            "table": small_decision().table,
            "found": small_decision().evaluation,
            "metric": "log_loss",
            "level": 0.9,
            "folds": 2,
            "repeats": 1,
            "seed": 0,
        },
        nothing,
    ),
    "decision.judge": ({"scores": next(iter(small_decision().evaluation.scores.values()))}, nothing),
    "decision.make_table": ({"X": X, "y": Y, "clients": OWNER, "kind": "classification", "names": None}, nothing),
    "incentives.CBER": ({}, lambda made: ct.incentives.simulate(GAME, "exp3", made, 20, 1)),
    "incentives.AdaptiveStackelberg": ({}, lambda made: ct.incentives.simulate(GAME, made, rounds=20, seeds=1)),
    "incentives.CompleteSharing": ({}, nothing),
    "incentives.ContextualExp3IX": ({}, nothing),
    "incentives.DefectionFreeSharing": (
        {},
        lambda made: ct.incentives.collaborate(*ct.incentives.quadratic_firms(0.3, 0.5), made, rounds=2),
    ),
    "incentives.Duopoly": ({"q_low": 0.3, "q_high": 0.5}, nothing),
    "incentives.Exp3IX": ({}, nothing),
    "incentives.FixedEvasion": ({}, lambda made: ct.incentives.simulate(GAME, "exp3", made, 20, 1)),
    "incentives.Learner": (
        {"quality": lambda s: 0.5, "step": lambda s, size: s},
        lambda made: ct.incentives.climb(made, 1.0),
    ),
    "incentives.Market": ({"qualities": [0.2, 0.5]}, nothing),
    "incentives.NoDiscrimination": ({}, nothing),
    "incentives.OnlyHighShares": ({}, nothing),
    "incentives.OnlyLowShares": (
        {},
        lambda made: ct.incentives.collaborate(*ct.incentives.quadratic_firms(0.3, 0.5), made, rounds=2),
    ),
    "incentives.PricingGame": (
        {"mu": 0.5, "low": 1.0, "high": 2.0, "buyer_cost": 0.1, "seller_cost": 0.1},
        lambda game: ct.incentives.simulate(game, "exp3", rounds=20, seeds=1),
    ),
    "incentives.LearningSeller": ({}, lambda made: ct.incentives.simulate(GAME, made, rounds=20, seeds=1)),
    "incentives.Stackelberg": ({}, lambda made: ct.incentives.simulate(GAME, made, rounds=20, seeds=1)),
    "incentives.climb": (
        {"learner": ct.incentives.Learner(lambda s: 0.5, lambda s, size: s), "state": 1.0},
        nothing,
    ),
    "incentives.collaborate": (
        {
            "low": ct.incentives.quadratic_firms(0.3, 0.5)[0],
            "high": ct.incentives.quadratic_firms(0.3, 0.5)[1],
            "scheme": ct.incentives.CompleteSharing(),
            "rounds": 2,
        },
        nothing,
    ),
    "incentives.descent": (
        {"loss": lambda x: float((x**2).sum()), "gradient": lambda x: 2 * x, "smoothness": 2.0},
        lambda made: ct.incentives.climb(made, np.ones(2)),
    ),
    "incentives.equilibrium_revenues": ({"q_low": 0.3, "q_high": 0.5}, nothing),
    "incentives.low_target": (
        {"q_low": 0.3, "q_high_before": 0.5, "q_high": 0.6, "bargain": ct.incentives.nash_bargaining(0.3, 0.5)},
        nothing,
    ),
    "incentives.nash_bargaining": ({"q_low0": 0.3, "q_high0": 0.5}, nothing),
    "incentives.nash_product": (
        {"revenue_low": 0.2, "revenue_high": 0.3, "disagreement": ct.incentives.Pair(0.1, 0.1)},
        nothing,
    ),
    "incentives.pacing_bound": ({"rho": 0.5}, nothing),
    "incentives.pacing_constant": ({}, nothing),
    "incentives.policy_regret": (
        {
            "simulation": ct.incentives.simulate(GAME, "exp3", rounds=20, seeds=1),
            "step": 0.5,
            "seeds": 1,
        },
        nothing,
    ),
    "incentives.quadratic_firms": ({"q_low0": 0.3, "q_high0": 0.5}, nothing),
    "incentives.quality_cap": ({"rho": 0.5, "growth": 1.1}, nothing),
    "incentives.simulate": ({"game": GAME, "seller": "exp3", "rounds": 20, "seeds": 1}, nothing),
    "datasets.blobs": ({"points": 20, "clusters": 2, "features": 2}, nothing),
    "datasets.by_group": ({"group": OWNER}, nothing),
    "datasets.catalogue": ({}, nothing),
    "datasets.cluster_quadratics": ({"clusters": 2, "clients_per_cluster": 2, "features": 2}, nothing),
    "datasets.digits": ({}, nothing),
    "datasets.dirichlet": ({"y": Y, "clients": 2, "alpha": 1.0, "seed": 0}, nothing),
    "datasets.elections": ({}, nothing),
    "datasets.find_data": ({"name": "mnist.npz"}, nothing),
    "datasets.heart": ({}, nothing),
    "datasets.heart_frame": ({}, nothing),
    "datasets.iid": ({"n": 20, "clients": 2, "seed": 0}, nothing),
    "datasets.label_shards": ({"y": Y, "clients": 2, "seed": 0}, nothing),
    "datasets.linear_model": ({"clients": 4, "samples": 4, "features": 2}, nothing),
    "datasets.pathological": ({"y": Y, "clients": 2, "seed": 0}, nothing),
    "datasets.rain": ({}, nothing),
    "datasets.rain_frame": ({}, nothing),
    "datasets.rain_stations": ({}, nothing),
    "robust.aggregated": (
        {
            "aggregate": ct.robust.Mean(),
            "stacked": {"w": torch.ones(4, 2)},
            "weights": torch.ones(4),
            "asked": 4,
            "key": torch.tensor(3),
        },
        nothing,
    ),
    "robust.for_group": ({"aggregate": ct.robust.Median(), "members": 3, "asked": 4}, nothing),
    "robust.with_aggregate": ({"algorithm": ct.FedAvg(), "aggregate": ct.robust.Median()}, nothing),
    "models.linear": ({"n_in": 2, "n_out": 2}, build),
    "models.mlp": ({"n_in": 2, "hidden": 3, "n_out": 2}, build),
    "models.two_conv": ({"n_out": 2, "width": 4, "hidden": 4}, build),
    "models.transformer": ({"vocabulary": 5, "n_out": 2}, build),
    "models.lstm": ({"vocabulary": 5, "n_out": 2}, build),
    "schedules.Cosine": ({"length": 3}, schedule),
    "schedules.StepDecay": ({"every": 3}, schedule),
    "schedules.Warmup": ({"length": 3}, schedule),
    "Federation.from_arrays": ({"data": PAIRS}, nothing),
    "Federation.from_flat": (
        {"x": X, "y": Y, "sizes": np.full(4, 12), "clients": list("abcd")},
        nothing,
    ),
    "Federation.from_frame": ({"frame": FRAME, "client": "c", "target": "y"}, nothing),
    "Federation.from_csv": ({"path": table_file(), "client": "c", "target": "y"}, nothing),
    "Federation.from_leaf": ({"folder": folder() / "none"}, nothing),
    "Federation.from_folder": ({"folder": folder() / "none"}, nothing),
    "Federation.from_datasets": ({"data": {"a": [(np.ones(2), 0), (np.zeros(2), 1)] * 4}}, nothing),
    "Federation.load": ({"folder": folder() / "none"}, nothing),
    "load_model": ({"path": folder() / "none"}, nothing),
    "Federation.save": ({"folder": folder() / "saved"}, nothing),
    "Federation.holdout": ({"fraction": 0.25}, nothing),
    "Federation.subset": ({"clients": ["a", "b"]}, nothing),
    "Federation.index": ({"client": "a"}, nothing),
    "Federation.name": ({"i": 0}, nothing),
    "Federation.rows": ({}, nothing),
    "Federation.sizes": ({"part": "train"}, nothing),
    "Federation.test": ({"client": "a"}, nothing),
    "Federation.train": ({"client": "a"}, nothing),
    "Federation.validation": ({"client": "a"}, nothing),
    "Federation.features": ({"rows": X}, nothing),
    "Federation.some_rows": ({"count": 3}, nothing),
}


def _fitted() -> dict[str, Any]:
    samples = [x for x, _ in PAIRS.values()]
    return {
        "GaussianMeans": (ct.GaussianMeans().fit(samples), {"samples": samples}),
        "MixtureMeans": (ct.MixtureMeans(n_init=1).fit(samples), {"samples": samples}),
        "BernoulliRates": (
            ct.BernoulliRates().fit([3, 4, 5], [9, 9, 9]),
            {"successes": [3, 4, 5], "trials": [9, 9, 9]},
        ),
        "LinearModels": (ct.LinearModels().fit(X, Y, OWNER), {"X": X, "y": Y, "groups": OWNER}),
        "LogisticModels": (ct.LogisticModels().fit(X, Y, OWNER), {"X": X, "y": Y, "groups": OWNER}),
        "MixtureModels": (ct.estimation.MixtureModels(rounds=2).fit(X, Y, OWNER), {"X": X, "y": Y, "groups": OWNER}),
        "HistogramMixture": (ct.HistogramMixture(2).fit(COUNTS), {"counts": COUNTS, "X": COUNTS}),
        "IFCAHistograms": (ct.histograms.IFCAHistograms(2, 3).fit(COUNTS), {"counts": COUNTS, "X": COUNTS}),
        "FedAvgHistogram": (ct.histograms.FedAvgHistogram().fit(COUNTS), {"counts": COUNTS, "X": COUNTS}),
        "LocalHistograms": (ct.histograms.LocalHistograms().fit(COUNTS), {"counts": COUNTS, "X": COUNTS}),
        "DirichletMultinomialMixture": (
            ct.histograms.DirichletMultinomialMixture(2, 3).fit(COUNTS),
            {"counts": COUNTS, "X": COUNTS},
        ),
        "Comparison": (
            ct.compare(FRAME, client="c", target="y", seeds=1, family="linear"),
            {"method": "shrunk", "mark": "gains", "client": "a", "folder": folder() / "comparison"},
        ),
        "Result": (
            result(),
            {"federation": federation(), "client": "a", "folder": folder() / "result", "column": "loss"}
            | {"x": PAIRS["a"][0], "y": PAIRS["a"][1]},
        ),
        "ThresholdClustering": (ct.robust.ThresholdClustering(2).fit(X), {"X": X, "points": X}),
        "Quantiser": (
            ct.estimation.Quantiser(3, 9.0),
            {"x": X, "rng": np.random.default_rng(0), "codes": np.ones((2, 2), np.int64)},
        ),
    }


PLUMBING = {
    "set_params",
    "get_params",
    "fit_sums",
    "fit_told",
    "fit_crowd",
    "told_posteriors",
    "shared_weight",
    "set_output",
    "get_metadata_routing",
    "fit_stream",
}


def _fresh(fitted: Any, name: str) -> Callable[..., Any]:
    """A method of a new estimator in every call, so that no call spoils the next."""

    @wraps(getattr(fitted, name))
    def call(*args: Any, **given: Any) -> Any:
        return getattr(clone(fitted), name)(*args, **given)

    return call


def _by_place(call: Callable[..., Any], first: str) -> Callable[..., Any]:
    def placed(**given: Any) -> Any:
        return call(given.pop(first), **given)

    return placed


def _methods() -> Iterator[tuple[str, Call]]:
    """Every public method of a fitted estimator that takes arguments."""
    for owner, (fitted, known) in _fitted().items():
        for name, static in inspect.getmembers(type(fitted), inspect.isfunction):
            if name.startswith("_") or name in PLUMBING or name.endswith("_request"):
                continue
            wanted = list(inspect.signature(static).parameters)[1:]
            valid = {k: known[k] for k in wanted if k in known}
            call: Callable[..., Any] = _fresh(fitted, name) if name.startswith("fit") else getattr(fitted, name)
            if wanted and name in ("transform", "fit_transform") and "X" not in wanted:
                call = _by_place(call, wanted[0])  # scikit-learn's wrapper calls the first argument X
            if wanted:
                yield f"{owner}.{name}", Call(call, valid, nothing, ("y",) if "y" not in known else ())


def _target(name: str) -> Callable[..., Any]:
    owner, _, last = name.rpartition(".")
    if owner == "Federation":
        bound = last.startswith("from_") or last == "load"
        made: Callable[..., Any] = getattr(ct.Federation if bound else federation(), last)
        return made
    thing: Callable[..., Any] = getattr(MODULES[f"{owner}." if owner else ""], last)
    return thing


def _guessed(prefix: str, thing: Any) -> Call | None:
    """Algorithms, robust rules, attacks and networks: their registries tell what they are for."""
    if prefix == "" and isinstance(thing, type) and ct.exchange.Algorithm in thing.__mro__:
        return Call(thing, {}, learn)
    if prefix == "robust." and isinstance(thing, type):
        required = {"n_corrupted": 1, "radius": 1.0}
        known = inspect.signature(thing).parameters
        return Call(thing, {k: v for k, v in required.items() if k in known}, aggregate)
    if prefix == "attacks.":
        return Call(thing, {"clients": ["a"]}, attack)
    return Call(thing, {}, build) if prefix == "models." else None


def calls() -> dict[str, Call]:
    """Every public callable with a valid call; one without is an error, so that none is forgotten."""
    found: dict[str, Call] = {}
    seen: set[Any] = set()
    for prefix, module in MODULES.items():
        for name, thing in offered(module):
            if (
                name in RECORDS | PROTOCOLS | TOOLS | HEAVY_DATA | STARTS_PROCESSES
                or thing in seen
                or name == "Federation"
            ):
                continue
            seen.add(thing)
            full = prefix + name
            call = Call(thing, *VALID[full]) if full in VALID else _guessed(prefix, thing)
            if call is None:
                raise LookupError(f"{full} is public; give it a valid call in VALID, or name it in RECORDS.")
            found[full] = call
    found |= {name: Call(_target(name), *VALID[name]) for name in VALID if name.startswith("Federation.")}
    return found | dict(_methods())


CALLS = calls()
