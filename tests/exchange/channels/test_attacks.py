"""Attack channels: what a liar's message becomes, that nothing else changes, and what it does to FedAvg."""

import warnings
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
import pytest
import torch

import coterie as ct
from coterie.aggregation import CentredClipping, GeometricMedian, Median, TrimmedMean
from coterie.aggregation.radius import Percentile
from coterie.base.tree import row
from coterie.errors import ConfigError, DataError
from coterie.exchange.channels import attacks
from coterie.exchange.channels.base import Where
from coterie.exchange.channels.updates import references
from coterie.exchange.messages import Ask

LOCAL = ct.LocalSGD(steps=5, lr=0.1, batch_size=None)


def federation(clients=6, seed=0, kind="regression"):
    rng = np.random.default_rng(seed)
    data = {}
    for i in range(clients):
        x = rng.normal(size=(15 + i, 3))
        y = x @ np.array([1.0, -2.0, 0.5]) + 0.1 * rng.normal(size=15 + i)
        data[f"c{i}"] = (x, y if kind == "regression" else (y > 0).astype(int) + (y > 1))
    return ct.Federation.from_arrays(data)


def vector(result):
    return torch.cat([t.flatten() for t in result.state.model.values()])


def updates(fed):
    """Every client's FedAvg update in the first round."""
    start = vector(ct.fit(ct.FedAvg(LOCAL), fed, rounds=0))
    alone = ct.fit(ct.Local(LOCAL), fed, rounds=1)
    models = [torch.cat([p.detach().flatten() for p in alone.model(c).parameters()]) for c in fed.clients]
    return torch.stack(models) - start


def mean_update(fed, channel, **more):
    """The average update with an attack, all clients counting as their samples."""
    result = ct.fit(ct.FedAvg(LOCAL), fed, rounds=1, channels=[channel], **more)
    return vector(result) - vector(ct.fit(ct.FedAvg(LOCAL), fed, rounds=0))


def average(rows, fed):
    w = torch.from_numpy(fed.n_train).float()
    return (rows * w.unsqueeze(1)).sum(0) / w.sum()


# ---- what is sent ----------------------------------------------------------------------------------------------------


def test_a_sign_flipped_client_moves_the_average_the_opposite_way():
    fed = federation(1)
    honest = mean_update(fed, attacks.SignFlip([]))
    assert float(honest.norm()) > 0.1
    torch.testing.assert_close(mean_update(fed, attacks.SignFlip(["c0"])), -honest, atol=1e-6, rtol=0)
    torch.testing.assert_close(mean_update(fed, attacks.SignFlip(["c0"], scale=2.0)), -2 * honest, atol=1e-6, rtol=0)


def lies(fed, true, liars):
    """Attack → the liars' updates by the attack's definition."""
    honest = true[[i for i in range(len(fed)) if i not in liars]]
    ids = [f"c{i}" for i in liars]
    z = NormalDist().inv_cdf((6 - 2 - 2) / 4)  # n = 6, m = 2, s = 2
    distances = (honest - true[0]).double().norm(dim=1)
    tau = float(np.percentile(distances, 40))
    back = -true[0] / true[0].norm()
    return {
        attacks.LargeGradient(ids): 100 * true[liars],
        attacks.SignFlip(ids): -true[liars],
        attacks.ALIE(ids): honest.mean(0) - z * honest.std(0, correction=0),
        attacks.ALIE(ids, z=1.5): honest.mean(0) - 1.5 * honest.std(0, correction=0),
        attacks.InnerProduct(ids, scale=3.0): -3 * honest.mean(0),
        attacks.EdgeAttack(ids, radius=2.0, victim="c0"): true[0] + 0.999 * 2 * back,
        attacks.EdgeAttack(ids, radius=Percentile(40), victim="c0"): true[0] + 0.999 * tau * back,
        attacks.EdgeAttack(ids, radius=2.0): honest.mean(0) - 0.999 * 2 * honest.mean(0) / honest.mean(0).norm(),
    }


@pytest.mark.filterwarnings("ignore:ALIE is no attack")
@pytest.mark.parametrize("number", range(8))
def test_average_with_liars_is_the_average_of_their_lies(number):
    fed, liars = federation(), [1, 4]
    true = updates(fed)
    channel, lie = list(lies(fed, true, liars).items())[number]
    told = true.clone()
    told[liars] = lie
    expected = average(told, fed)
    for engine in (ct.engines.LocalEngine(), ct.engines.LocalEngine(chunk=2), ct.engines.LoopEngine()):
        torch.testing.assert_close(mean_update(fed, channel, engine=engine), expected, atol=1e-4, rtol=1e-4)
    if not (isinstance(channel, attacks.ALIE) and channel.z is None):  # which hides at z = 0 with so few clients
        assert float((expected - average(true, fed)).norm()) > 0.01


def test_alie_says_when_it_is_no_attack():
    """Two liars of six hide at z = 0. Python shows a text once, so a run of several rounds warns once."""
    fed = federation()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        ct.fit(ct.FedAvg(LOCAL), fed, rounds=3, cohort=5, channels=[attacks.ALIE(["c1", "c4"])], alone=False)
    assert len(caught) == 1
    assert issubclass(caught[0].category, ct.errors.CoterieWarning)
    assert str(caught[0].message).startswith("ALIE is no attack here: with 2 liars among 6 clients z is 0,")
    for channel in (attacks.ALIE(["c1", "c4"], z=1.0), attacks.ALIE(["c0", "c1", "c2", "c4"]), attacks.ALIE([])):
        ct.fit(ct.FedAvg(LOCAL), fed, rounds=1, channels=[channel], alone=False)  # a warning would be an error


def test_gaussian_noise_replaces_the_update_and_comes_from_the_seed():
    fed = federation(40)
    ids = [f"c{i}" for i in range(40)]
    true = updates(fed)
    one = mean_update(fed, attacks.GaussianNoise(ids, std=2.0))
    assert torch.equal(one, mean_update(fed, attacks.GaussianNoise(ids, std=2.0)))
    assert not torch.equal(one, mean_update(fed, attacks.GaussianNoise(ids, std=2.0), seed=1))
    assert float(one.norm()) < 4 * 2.0 * np.sqrt(4 / 40)  # the updates themselves, of norm about 2, are gone
    assert float((one - average(true, fed)).norm()) > 0.5
    huge = mean_update(fed, attacks.GaussianNoise.huge(ids))
    torch.testing.assert_close(huge, torch.full_like(huge, 1e6), atol=4 * 200 / np.sqrt(40), rtol=0)


def test_label_flip_trains_on_shifted_labels():
    fed = federation(4, kind="classification")
    data = {c: fed.train(c) for c in fed.clients}
    shifted = ct.Federation.from_arrays(
        {c: (x.numpy(), ((y + 2) % 3).numpy() if c == "c2" else y.numpy()) for c, (x, y) in data.items()},
        test_fraction=0.0,
    )
    plain = ct.Federation.from_arrays({c: (x.numpy(), y.numpy()) for c, (x, y) in data.items()}, test_fraction=0.0)
    attacked = ct.fit(ct.FedAvg(LOCAL), plain, rounds=2, channels=[attacks.LabelFlip(["c2"], shift=2)])
    torch.testing.assert_close(vector(attacked), vector(ct.fit(ct.FedAvg(LOCAL), shifted, rounds=2)))
    assert not torch.allclose(vector(attacked), vector(ct.fit(ct.FedAvg(LOCAL), plain, rounds=2)), atol=1e-3)


# ---- what an update is measured from ---------------------------------------------------------------------------------


def where(fed, group=None):
    return Where(fed, 0, 0, 0, group)


def test_updates_are_measured_from_what_the_client_was_given():
    fed, asked, clients = federation(), np.array([4, 0, 2]), np.array([0, 2])
    w = torch.arange(6.0).reshape(3, 2)
    send = {"model": {"w": torch.zeros(2, 2)}, "grad": torch.ones(2, 2), "count": torch.ones(2, dtype=torch.int64)}

    def measured(origin, group=None, **given):
        ask = Ask(id, asked, **given, updates={"model": origin, "grad": None}, auxiliary=("count",))
        return references(send, clients, ask, where(fed, group), "A test")

    own = measured(ct.exchange.From("model"), each={"model": {"w": w}})
    torch.testing.assert_close(own["model/w"], w[[1, 2]])  # the rows of clients 0 and 2
    same = measured(ct.exchange.From("model"), down={"model": {"w": w[0]}})
    torch.testing.assert_close(same["model/w"], w[[0, 0]])
    chosen = measured(ct.exchange.From(groups="models"), torch.tensor([2, 1]), down={"models": {"w": w}})
    torch.testing.assert_close(chosen["model/w"], w[[2, 1]])
    both = {"models": {"v": w}, "shared": {"w": w[1]}}
    common = measured(ct.exchange.From("shared", groups="models"), torch.tensor([2, 1]), down=both)
    torch.testing.assert_close(common["model/w"], w[[1, 1]])
    for found in (own, same, chosen, common):
        assert not found["grad"].any()
        assert "count" not in found
    with pytest.raises(ct.errors.ConfigError, match="gave clients nothing of shape"):
        measured(ct.exchange.From("start"), each={"model": {"w": w}})


def test_an_attack_refuses_what_is_not_declared_and_obeys_what_is():
    """The name of a field means nothing: {"weights": …} declared as an update is forged just as {"model": …} is."""
    fed, local = federation(), ct.LocalSGD(steps=3, lr=0.1, batch_size=None)

    @dataclass(frozen=True)
    class Renamed(ct.FedAvg):
        declared: bool = True

        def round(self, state, cohort):
            say = {"updates": {"weights": ct.exchange.From("start")}} if self.declared else {}
            reply = yield Ask(self.send, cohort.clients, {"start": state.model}, reduce=ct.exchange.MeanBy(), **say)
            return replace(state, model=row(reply.values["weights"], 0))

        def send(self, ctx, start):
            trained, loss = self.local.fit(ctx, start)
            return ct.exchange.Up(send={"weights": trained}, weight=ctx.n, info={"loss": loss})

    liars = [attacks.SignFlip(["c2", "c3"])]
    got, want = (ct.fit(a, fed, rounds=3, channels=liars).state.model for a in (Renamed(local), ct.FedAvg(local)))
    for name, t in want.items():
        torch.testing.assert_close(got[name], t)
    with pytest.raises(ct.errors.ConfigError, match=r"SignFlip acts on .*'send' does not say whether 'weights'"):
        ct.fit(Renamed(local, declared=False), fed, rounds=1, channels=liars)
    ct.fit(Renamed(local, declared=False), fed, rounds=1)


def test_only_liars_and_only_floating_fields_change():
    fed, clients = federation(), np.array([0, 2, 3])
    a = torch.arange(1.0, 13).reshape(3, 2, 2)
    send = {"grad": {"a": a, "b": a[:, 0, 1]}, "seen": torch.tensor([1, 2, 3])}
    ask = Ask(id, clients, updates={"grad": None}, auxiliary=("seen",))
    got = attacks.SignFlip(["c2"]).up(send, clients, ask, where(fed))
    for part in ("a", "b"):
        assert torch.equal(got["grad"][part][[0, 2]], send["grad"][part][[0, 2]])
        assert torch.equal(got["grad"][part][1], -send["grad"][part][1])
    assert torch.equal(got["seen"], send["seen"])
    assert attacks.SignFlip(["c5"]).up(send, clients, Ask(id, clients), where(fed)) is send


@dataclass(frozen=True)
class Choosing(ct.exchange.Algorithm):
    """Two models; client i trains model i mod 2."""

    def init(self, task, population, seed, start):
        return ct.algorithms.oracle.OracleState({k: torch.stack([t, t + 1]) for k, t in start.items()}, torch.arange(2))

    def round(self, state, cohort):
        said = {"model": ct.exchange.From(groups="models")}
        reply = yield Ask(
            self.train, cohort.clients, {"models": state.models}, reduce=ct.exchange.MeanBy(2), updates=said
        )
        return ct.algorithms.oracle.OracleState(reply.or_keep("model", state.models), state.truth)

    def train(self, ctx, models):
        group = ctx.index % 2
        model, loss = LOCAL.fit(ctx, ct.exchange.tree.take(models, group))
        return ct.exchange.Up({"model": model}, weight=ctx.n, group=group, info={"loss": loss})

    def personal(self, ctx, state):
        return ct.exchange.tree.take(state.models, ctx.index % 2)


def test_with_several_models_the_update_is_from_the_one_trained():
    fed = federation(2)
    models = [ct.fit(Choosing(), fed, rounds=r, channels=c, alone=False).state.models
              for r, c in ((0, []), (1, []), (1, [attacks.SignFlip(["c0", "c1"])]))]  # fmt: skip
    for name in models[0]:
        start, trained, flipped = (m[name] for m in models)
        assert float((trained - start).norm()) > 0.05
        torch.testing.assert_close(flipped - start, start - trained, atol=1e-5, rtol=0)


# ---- what it does ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "aggregate", [Median(), TrimmedMean(2), GeometricMedian(), CentredClipping(0.5, start="median")]
)
def test_large_lies_ruin_the_mean_and_not_the_robust(aggregate):
    fed = federation(9, seed=3)
    liars = attacks.GaussianNoise.huge(["c2", "c5"])
    clean = ct.fit(ct.FedAvg(LOCAL), fed, rounds=10).history.loss.iloc[-1]
    ruined = ct.fit(ct.FedAvg(LOCAL), fed, rounds=2, channels=[liars]).history.loss.iloc[-1]
    robust = ct.fit(ct.FedAvg(LOCAL, aggregate=aggregate), fed, rounds=10, channels=[liars]).history.loss.iloc[-1]
    assert ruined > 1e6
    assert robust < clean + 0.05


def test_errors_say_what_to_do():
    with pytest.raises(DataError, match="There is no client 'zoe'"):
        ct.fit(ct.FedAvg(), federation(), rounds=1, channels=[attacks.SignFlip(["c1", "zoe"])])
    with pytest.raises(ConfigError, match="list of client ids"):
        attacks.SignFlip("c1")
    with pytest.raises(ConfigError, match="LabelFlip needs classes"):
        ct.fit(ct.FedAvg(), federation(), rounds=1, channels=[attacks.LabelFlip(["c1"])])
    with pytest.raises(ConfigError, match="radius must be"):
        attacks.EdgeAttack(["c1"], radius="big")


def test_without_a_named_victim_the_edge_attack_follows_the_owner_of_the_model_asked_about():
    """In Federated-Clustering every ask is about one client's model; the lie is at the edge of that client's ball."""
    fed, seen = federation(), []

    class Spy(attacks.EdgeAttack):
        def forge(self, updates, told):
            lie = super().forge(updates, told)
            seen.append((told.owner, updates.clone(), lie[0].clone()))
            return lie

    ct.fit(ct.FederatedClustering(radius=2.0), fed, rounds=1, channels=[Spy(["c1"], radius=2.0)], alone=False)
    assert sorted(owner for owner, _, _ in seen) == list(range(len(fed)))
    for owner, gradients, lie in seen:
        assert float((lie - gradients[owner]).norm()) == pytest.approx(0.999 * 2, rel=1e-4)
    seen.clear()
    ct.fit(ct.FedAvg(), fed, rounds=1, channels=[Spy(["c1"], radius=2.0)], alone=False)
    assert seen[0][0] is None


def test_false_claims_are_about_the_group_and_the_losses_alone():
    fed, clients = federation(kind="classification"), np.array([0, 1, 2])
    lie = attacks.FalseClaims(["c1"], cluster=1, loss=7.0)
    ask = Ask(id, clients, reduce=ct.exchange.MeanBy(3), auxiliary=("losses", "cluster"))
    group = torch.tensor([2, 2, 2])
    assert lie.claim(group, clients, ask, where(fed)).tolist() == [2, 1, 2]
    one = Ask(id, clients, reduce=ct.exchange.MeanBy())
    assert lie.claim(torch.zeros(3, dtype=torch.int64), clients, one, where(fed)).tolist() == [0, 0, 0]
    send = {"losses": torch.ones(3, 3), "cluster": torch.tensor([0, 2, 0]), "model": torch.ones(3, 2)}
    told = lie.up(send, clients, ask, where(fed))
    assert told["losses"].tolist() == [[1, 1, 1], [7, -7, 7], [1, 1, 1]]
    assert told["cluster"].tolist() == [0, 1, 0]
    assert torch.equal(told["model"], send["model"])
    assert send["losses"].max() == 1  # what the client keeps stays honest


@pytest.mark.parametrize("aggregate", [ct.robust.Mean(), ct.robust.Median()])
def test_a_group_that_nobody_claims_is_not_trained(fed: ct.Federation, task: ct.Task, aggregate: object) -> None:
    ifca = ct.IFCA(clusters=2, start="random", local=LOCAL, aggregate=aggregate)
    claims = [attacks.FalseClaims(list(fed.clients), cluster=0)]
    start, honest, lied = (
        ct.fit(ifca, fed, task, rounds=r, channels=c, alone=False).state.models
        for r, c in ((0, []), (2, []), (2, claims))
    )
    moved = [max(float((m[name][1] - start[name][1]).abs().max()) for name in start) for m in (honest, lied)]
    assert moved[1] == 0
    assert any(not torch.equal(lied[name][0], start[name][0]) for name in start)
    assert moved[0] > 0 or any(not torch.equal(honest[name], lied[name]) for name in start)


def test_registry_is_complete():
    named = {v for v in vars(attacks).values() if isinstance(v, type) and issubclass(v, attacks.Attack)}
    assert set(attacks.ATTACKS.values()) == named - {attacks.Attack}


def test_test_rows_are_never_tampered_with(fed: ct.Federation, task: ct.Task) -> None:
    """Everybody trains on other labels; models are still scored on the true ones."""
    flip = attacks.LabelFlip(list(fed.clients))
    one, two = (ct.fit(ct.FedAvg(), fed, task, rounds=0, channels=c, alone=False) for c in ([], [flip]))
    assert one.scores().equals(two.scores())
    assert np.array_equal(one.evaluation.test_losses(), two.evaluation.test_losses())
    assert not np.array_equal(one.evaluation.train_losses(), two.evaluation.train_losses())


@pytest.mark.parametrize("engine", ["local", "loop"])
def test_a_lie_that_is_no_number_is_dropped_and_named(fed: ct.Federation, task: ct.Task, engine: str) -> None:
    liar = attacks.GaussianNoise([fed.clients[3]], std=float("inf"))
    result = ct.fit(ct.FedAvg(LOCAL), fed, task, rounds=1, channels=[liar], engine=engine, alone=False)
    assert [entry["client"] for entry in result.about["dropped"]] == [fed.clients[3]]
    assert result.history["lost"].tolist() == [1]
    assert all(bool(torch.isfinite(t).all()) for t in result.state.model.values())
