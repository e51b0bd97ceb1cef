"""Networks that draw, normalise, recur and attend: the same on both engines, after a resume, with any workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import coterie as ct
from coterie.algorithms import ALGORITHMS
from coterie.base.settings import with_setting
from coterie.learning.batched.drawing import Drawing

SGD = ct.LocalSGD(steps=3, lr=0.1, batch_size=8)


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.body, self.head = kind(1, 5, batch_first=True, **options), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x.unsqueeze(-1))[0][:, -1])
        return out


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lift, self.head = nn.Linear(1, 8), nn.Linear(8, 3)
        self.body = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(self.lift(x.unsqueeze(-1))).mean(1))
        return out


class StochasticDepth(nn.Module):
    """A residual branch that is left out at random, for each sample, in one of the ways people write it."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.branch, self.head, self.way = nn.Linear(4, 4), nn.Linear(4, 3), way

    def forward(self, x: Tensor) -> Tensor:
        branch = self.branch(x)
        if self.training:
            draws = {
                "bernoulli_": lambda: torch.empty(len(x), 1).bernoulli_(0.8),
                "new_empty": lambda: x.new_empty(len(x), 1).bernoulli_(0.8),
                "rand": lambda: (torch.rand(len(x), 1) < 0.8).to(x.dtype),
                "coin": lambda: torch.ones(1) if torch.rand(1) < 0.8 else torch.zeros(1),
            }
            branch = branch * draws[self.way]() / 0.8
        out: Tensor = self.head(x + branch)
        return out


class Tied(nn.Module):
    """One matrix for two layers, and a frozen part in half precision."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.second.weight = self.first.weight
        self.frozen = nn.Parameter(torch.ones(4, dtype=torch.float16), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.second(torch.tanh(self.first(x * self.frozen.to(x.dtype)))))
        return out


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], bool]] = {  # and whether clients run one by one
    "dropout": (lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, 3)), False),
    "alpha dropout": (lambda: nn.Sequential(nn.Linear(4, 6), nn.SELU(), nn.AlphaDropout(0.3), nn.Linear(6, 3)), False),
    "batch norm": (normalised, True),
    "batch norm and dropout": (lambda: nn.Sequential(*normalised(), nn.Dropout(0.2)), True),
    "lstm": (lambda: Recurrent(nn.LSTM, num_layers=2, dropout=0.3), True),
    "attention": (Attending, False),
    "stochastic depth": (lambda: StochasticDepth("new_empty"), False),
    "coin": (lambda: StochasticDepth("coin"), True),
    "tied and frozen": (Tied, False),
}


def personal(result: ct.Result) -> dict[str, Tensor]:
    live = result.evaluation
    return live.personal(live.everyone())


def run(model: Callable[[], nn.Module], fed: ct.Federation, algorithm: Any = None, **options: Any) -> dict[str, Tensor]:
    task = ct.Task(model, metric=("accuracy", "log_loss"))
    how: dict[str, Any] = {"rounds": 2, "cohort": 7, "alone": False} | options
    return personal(ct.fit(algorithm or ct.FedAvg(SGD), fed, task, **how))


def close(a: dict[str, Tensor], b: dict[str, Tensor], tolerance: float = 2e-5) -> None:
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", NETWORKS)
def test_equal_on_both_engines_with_any_workers_and_after_a_resume(
    name: str, fed: ct.Federation, tmp_path: Path
) -> None:
    model, alone = NETWORKS[name]
    task = ct.Task(model)
    options: dict[str, Any] = {
        "cohort": 7,
        "alone": False,
        "channels": [ct.exchange.Dropout(0.2)],
    }  # some clients are lost

    def fit(rounds: int = 2, **more: Any) -> dict[str, Tensor]:
        return personal(ct.fit(ct.FedAvg(SGD), fed, task, rounds=rounds, **options, **more))

    one = fit(engine=ct.engines.LocalEngine(workers=1))
    assert task.alone == alone
    close(one, fit(engine="loop"))
    both = ct.engines.LocalEngine(workers=2)
    two = fit(engine=both)
    if name == "alpha dropout":  # torch's SELU of the last few numbers of a tensor differs by a bit
        close(one, two, 1e-6)
    else:
        assert all(torch.equal(one[n], two[n]) for n in one)
    fit(1, out=tmp_path, engine=both)
    again = fit(out=tmp_path, resume=True, engine=both)
    assert all(torch.equal(two[n], again[n]) for n in two)


@pytest.mark.parametrize("way", ["bernoulli_", "rand"])
def test_stochastic_depth_in_other_words(way: str, fed: ct.Federation) -> None:
    one, two = (run(lambda: StochasticDepth(way), fed, rounds=1, engine=e) for e in ("local", "loop"))
    close(one, two)


def test_it_is_off_in_evaluation_and_differs_between_clients_steps_and_seeds(fed: ct.Federation) -> None:
    task = ct.Task(NETWORKS["dropout"][0])
    task.check(fed)
    params, x = task.init(0), torch.ones(5, 4)
    assert torch.equal(task.outputs(params, x), task.outputs(params, x))
    one, two = (task.training_outputs(params, x, torch.tensor(k)) for k in (1, 2))
    assert not torch.equal(one, two)
    assert torch.equal(one, task.training_outputs(params, x, torch.tensor(1)))
    assert not torch.equal(one[0], one[1])  # equal samples, other draws
    torch.testing.assert_close(one[:2], task.training_outputs(params, x[:2], torch.tensor(1)))  # whatever follows
    other = (run(NETWORKS["dropout"][0], fed, seed=s, rounds=1)["3.bias"] for s in (0, 1))
    assert not torch.equal(*other)


def test_draws_have_the_right_distribution() -> None:
    """Shares and means within four standard errors, and none from the global generator."""
    before = torch.get_rng_state()
    n = 40_000
    with Drawing(torch.tensor(5)):
        dropped = F.dropout(torch.ones(n), 0.3)
        channels = F.dropout2d(torch.ones(200, 50, 2, 2), 0.3)
        selu = F.alpha_dropout(torch.randn(n), 0.2, training=True)
        rand, coin = torch.rand(n), torch.full((n,), 0.25).bernoulli()
        maps = F.feature_alpha_dropout(torch.zeros(200, 50, 2, 2), 0.2, training=True)
        normal, waits = torch.normal(2.0, 3.0, (n,)), torch.empty(n).exponential_(2.0)
        dice, signs, order = torch.randint(1, 7, (n,)), torch.randint_like(rand, 2), torch.randperm(1000)
    assert torch.equal(before, torch.get_rng_state())
    assert abs(float((dropped == 0).double().mean()) - 0.3) < 4 * (0.21 / n) ** 0.5
    torch.testing.assert_close(dropped.unique(), torch.tensor([0.0, 1 / 0.7]))
    assert (channels.amax((2, 3)) == channels.amin((2, 3))).all()
    assert abs(float((channels[..., 0, 0] == 0).double().mean()) - 0.3) < 4 * (0.21 / 10_000) ** 0.5
    assert abs(float(selu.mean())) < 4 / n**0.5
    assert abs(float(selu.var()) - 1) < 4 * (2 / n) ** 0.5 * 1.5
    assert abs(float(rand.mean()) - 0.5) < 4 * (1 / 12 / n) ** 0.5
    assert abs(float(coin.mean()) - 0.25) < 4 * (0.1875 / n) ** 0.5
    assert (maps.amax((2, 3)) == maps.amin((2, 3))).all()
    assert abs(float((maps[..., 0, 0] < 0).double().mean()) - 0.2) < 4 * (0.16 / 10_000) ** 0.5
    assert abs(float(normal.mean()) - 2) < 4 * 3 / n**0.5
    assert abs(float(normal.std()) - 3) < 4 * 3 / (2 * n) ** 0.5
    assert abs(float(waits.mean()) - 0.5) < 4 * 0.5 / n**0.5
    assert dice.unique().tolist() == [1, 2, 3, 4, 5, 6]
    assert abs(float(dice.double().mean()) - 3.5) < 4 * (35 / 12 / n) ** 0.5
    assert signs.dtype == rand.dtype
    assert signs.unique().tolist() == [0, 1]
    assert order.sort().values.equal(torch.arange(1000))
    assert not order.equal(torch.arange(1000))


def test_attention_and_recurrent_layers_are_torchs_own_without_dropout() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 6, 8)
    heads = nn.MultiheadAttention(8, 2, batch_first=True)
    causal = nn.Transformer.generate_square_subsequent_mask(6)
    layers = nn.LSTM(8, 4, 2, dropout=0.5, bidirectional=True, batch_first=True)
    with torch.no_grad():
        plain = [heads(x, x, x, need_weights=w, attn_mask=causal)[0] for w in (True, False)]
        plain.append(F.scaled_dot_product_attention(x, x, x, is_causal=True))
        plain += layers.eval()(x)[1]
        with Drawing(torch.tensor(0)):
            ours = [heads(x, x, x, need_weights=w, attn_mask=causal)[0] for w in (True, False)]
            ours.append(F.scaled_dot_product_attention(x, x, x, is_causal=True))
            ours += layers(x)[1]
            wet = layers.train()(x)
    for a, b in zip(plain, ours, strict=True):
        torch.testing.assert_close(a, b)
    assert [t.shape for t in wet[1]] == [t.shape for t in plain[-2:]]
    torch.testing.assert_close(wet[1][0][:2], plain[-2][:2])  # the first layer comes before the dropout
    assert not torch.allclose(wet[1][0][2:], plain[-2][2:])


def test_packed_sequences_with_dropout_are_refused_in_one_sentence(fed: ct.Federation) -> None:
    class Packed(Recurrent):
        def forward(self, x: Tensor) -> Tensor:
            packed = nn.utils.rnn.pack_sequence(list(x.unsqueeze(-1)))
            out: Tensor = self.head(self.body(packed)[1][0][-1])
            return out

    run(lambda: Packed(nn.LSTM), fed, rounds=1)
    with pytest.raises(ct.errors.TaskError, match="packed"):
        run(lambda: Packed(nn.LSTM, num_layers=2, dropout=0.1), fed, rounds=1)


# ---- running statistics ------------------------------------------------------------------------------------------------


def test_one_client_with_batch_norm_is_a_plain_torch_loop() -> None:
    """Full batches of everybody's data: FedAvg of one client is torch's own training, statistics included."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(2.0, 3.0, (40, 4)), rng.integers(0, 3, 40)
    fed = ct.Federation.from_arrays({"a": (x, y)}, test_fraction=0.0)
    task = ct.Task(normalised)
    mine = run(normalised, fed, ct.FedAvg(ct.LocalSGD(steps=3, lr=0.1, batch_size=None)), cohort=None)
    module = task.module(0)
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    xs, ys = fed.train("a")
    for _ in range(6):
        optimiser.zero_grad()
        F.cross_entropy(module(xs), ys).backward()
        optimiser.step()
    theirs = dict(module.state_dict())
    for name, t in mine.items():
        torch.testing.assert_close(t[0], theirs[name], rtol=1e-5, atol=1e-6)
    assert float((mine["1.running_var"] - 1).abs().max()) > 0.1


def test_a_network_with_statistics_is_given_back_whole(fed: ct.Federation, tmp_path: Path) -> None:
    result = ct.fit(ct.FedAvg(SGD), fed, ct.Task(normalised), rounds=2, out=tmp_path, alone=False)
    x, _ = fed.test("c11")
    kept = ct.Result.load(tmp_path).model("c11")
    with torch.no_grad():
        torch.testing.assert_close(result.model("c11")(x), kept(x))
        expected = result.task.outputs({n: t[11] for n, t in personal(result).items()}, x)
        torch.testing.assert_close(kept(x), expected)


def test_a_batch_of_one_sample_is_normalised_with_the_running_statistics(make_fed: Any) -> None:
    fed = make_fed(sizes=(12, 13, 12))  # nine training rows: batches of eight and one
    result = run(normalised, fed, ct.FedAvg(ct.LocalSGD(epochs=1, lr=0.1, batch_size=8)), cohort=None)
    assert all(torch.isfinite(t).all() for t in result.values())


CARRY = [
    "fedbabu",
    "fedper",
    "lgfedavg",
    "local",
    "fedavg",
    "fedprox",
    "finetuned",
    "oracle",
    "ifca",
    "hypcluster",
    "ditto",
    "fedrep",
    "knnper",
    "fedbn",
]


@pytest.mark.parametrize("name", CARRY)
def test_algorithms_that_carry_statistics_do_so_on_both_engines(name: str, fed: ct.Federation) -> None:
    algorithm = ALGORITHMS[name](**({"clusters": 2} if name in ("ifca", "hypcluster") else {}))
    algorithm = with_setting(algorithm, "local", SGD)
    one, two = (run(normalised, fed, algorithm, engine=e) for e in ("local", "loop"))
    close(one, two)
    assert (one["1.running_var"] > 0).all()
    assert float((one["1.running_mean"]).abs().max()) > 1e-3


def test_all_others_refuse_it(fed: ct.Federation) -> None:
    for name, kind in ALGORITHMS.items():
        if name in CARRY or name == "defection_free":
            continue
        options = {"clusters": 2} if "clusters" in kind.__dataclass_fields__ else {}
        with pytest.raises(ct.errors.ConfigError, match=r"does not carry running statistics.*nn\.GroupNorm"):
            ct.fit(kind(**options), fed, ct.Task(normalised), rounds=1)
    for wrong in (ct.FedAvg(server_lr=0.5), ct.FedAvg(server_momentum=0.9), ct.IFCA(clusters=2, option="gradient")):
        with pytest.raises(ct.errors.ConfigError, match="running statistics"):
            ct.fit(wrong, fed, ct.Task(normalised), rounds=1)


@pytest.mark.filterwarnings("ignore::coterie.errors.CoterieWarning")
def test_statistics_are_never_released_in_a_private_run(fed: ct.Federation) -> None:
    privacy = ct.Privacy(3.0, 1e-6, clip=0.3, noise="simulation")
    for algorithm in (ct.FedAvg(SGD), ct.Ditto(local=SGD), ct.IFCA(clusters=2, local=SGD)):
        with pytest.raises(ct.errors.ConfigError, match="a noisy variance may be negative"):
            ct.fit(algorithm, fed, ct.Task(normalised), rounds=1, privacy=privacy)
    own = ct.fit(ct.FedBN(SGD), fed, ct.Task(normalised), rounds=1, privacy=privacy, alone=False)
    assert not [name for name in own.state.common if name.startswith("1.")]


def test_no_client_sees_anothers_statistics(fed: ct.Federation) -> None:
    """Under Local and FedBN another client's data change nothing of a client's own statistics."""
    x = fed.x.clone()
    x[int(fed.offsets[0]) : int(fed.offsets[1])] *= 100.0
    other = replace(fed, x=x)
    for engine in ("local", "loop"):
        one, two = (run(normalised, f, ct.Local(SGD), cohort=None, engine=engine) for f in (fed, other))
        assert all(torch.equal(one[n][1:], two[n][1:]) for n in one)
        assert not torch.equal(one["1.running_var"][0], two["1.running_var"][0])


def test_fedbn_keeps_what_it_is_told(fed: ct.Federation) -> None:
    def spread(keep: Any) -> set[str]:
        models = run(normalised, fed, ct.FedBN(SGD, keep=keep), cohort=None)
        return {name for name, t in models.items() if not torch.equal(t[0], t[1])}

    layers = {"1.weight", "1.bias", "1.running_mean", "1.running_var"}
    assert spread("layers") == layers
    assert spread("statistics") == {"1.running_mean", "1.running_var"}
    assert spread(["3", "1.running_mean", "1.running_var"]) == {"3.weight", "3.bias", "1.running_mean", "1.running_var"}
    with pytest.raises(ct.errors.ConfigError, match="FedBN keeps normalising layers"):
        run(NETWORKS["dropout"][0], fed, ct.FedBN(SGD))


def test_fedbn_gives_a_client_that_never_took_part_statistics_of_its_own_data(fed: ct.Federation) -> None:
    models = run(normalised, fed, ct.FedBN(SGD), cohort=2, rounds=1)
    means = models["1.running_mean"]
    assert (means.abs().sum(1) > 0).all()
    assert len(torch.unique(means, dim=0)) == len(fed)


# ---- types -------------------------------------------------------------------------------------------------------------


def test_frozen_parts_keep_their_type_and_others_follow_the_data(fed64: ct.Federation) -> None:
    task = ct.Task(Tied)
    result = ct.fit(ct.FedAvg(SGD), fed64, task, rounds=1, alone=False)
    model = result.model("c0")
    assert model.frozen.dtype == torch.float16
    assert model.head.weight.dtype == torch.float64
    assert model.first.weight is model.second.weight
    assert "second.weight" not in task.init(0)
    frozen = ct.Task(lambda: nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 3)))
    assert ct.fit(ct.FedAvg(SGD), fed64, frozen, rounds=1, alone=False).model("c0")[0].weight.dtype == torch.float64
