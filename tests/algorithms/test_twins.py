"""Methods beside plain twins: loops over clients in ordinary PyTorch, written from the papers, on a tiny federation.

Clients take part in turns, one of them never, so that what a client keeps, what the server keeps and what a stranger
gets are all compared. A twin shares no code with the package except the network's first values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import coterie as ct

LR, STEPS = 0.3, 2
LOCAL = ct.LocalSGD(steps=STEPS, lr=LR, batch_size=None)
SIZES = (6, 9, 12, 7, 5)
TURNS = ((0, 1, 2), (1, 3), (0, 2, 3), (0, 1, 2, 3))  # client 4 never takes part
HEAD, BODY = ("2.weight", "2.bias"), ("0.weight", "0.bias")


class Turns:
    def sample(self, federation, seed, round):
        return np.array(TURNS[round])


@pytest.fixture(scope="module")
def fed():
    rng = np.random.default_rng(1)
    data = {}
    for i, n in enumerate(SIZES):
        x = rng.normal(size=(n, 4)) + 0.5 * i
        y = (x @ rng.normal(size=(4, 3))).argmax(1)
        y[:2] = (0, 1)
        if i in (1, 3):  # the second round has no client with class 2
            y[y == 2] = 0
        data[i] = (x, y)
    return ct.Federation.from_arrays(data, dtype="float64", test_fraction=0.0, classes=[0, 1, 2])


@pytest.fixture(scope="module")
def task():
    return ct.Task(lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)))


@pytest.fixture
def twin(fed, task):
    return Twin(fed, task)


class Twin:
    """What all twins need: the clients' rows, the network, descent, means, and the comparison."""

    def __init__(self, fed, task):
        self.fed, self.task = fed, task
        self.start = task.init(0, torch.float64)
        self.rows = [fed.train(i) for i in fed.clients]
        self.n = [len(y) for _, y in self.rows]

    def fitted(self, algorithm, rounds=4):
        return ct.fit(algorithm, self.fed, self.task, rounds=rounds, cohort=Turns(), alone=False)

    def same(self, algorithm, expected, states: dict[str, Any] | None = None):
        """Every client's model, and fields of the server's state, within 1e-9 of the twin's."""
        result = self.fitted(algorithm)
        live = result.evaluation
        models = live.personal(live.everyone())
        for i, model in enumerate(expected):
            for name, t in model.items():
                torch.testing.assert_close(
                    models[name][i],
                    t.detach(),
                    rtol=1e-9,
                    atol=1e-9,
                    msg=lambda m, n=name, i=i: f"client {i}, {n}: {m}",
                )
        for name, t in (states or {}).items():
            torch.testing.assert_close(getattr(result.state, name), t, rtol=1e-9, atol=1e-9)
        return result

    def hidden(self, p, x):
        return torch.tanh(x @ p["0.weight"].T + p["0.bias"])

    def out(self, p, x):
        return self.hidden(p, x) @ p["2.weight"].T + p["2.bias"]

    def loss(self, p, i):
        x, y = self.rows[i]
        return F.cross_entropy(self.out(p, x), y)

    def descend(self, p, loss, names=(*BODY, *HEAD), steps=STEPS, lr=LR):
        for _ in range(steps):
            q = {k: t.detach().clone().requires_grad_(k in names) for k, t in p.items()}
            loss(q).backward()
            p = {k: (t - lr * t.grad if k in names else t).detach() for k, t in q.items()}
        return p

    def train(self, p, i, **how):
        return self.descend(p, lambda q: self.loss(q, i), **how)

    def mean(self, models, weights):
        total = sum(weights)
        return {k: sum(w * m[k] for w, m in zip(weights, models, strict=True)) / total for k in models[0]}


def part(model, names):
    return {k: model[k] for k in names}


@pytest.mark.parametrize(("method", "shared", "own"), [(ct.FedPer, BODY, HEAD), (ct.LGFedAvg, HEAD, BODY)])
def test_a_shared_part_and_an_own_part_trained_together(twin, method, shared, own):
    common, mine = part(twin.start, shared), {}
    for clients in TURNS:
        trained = {i: twin.train(common | mine.get(i, part(twin.start, own)), i) for i in clients}
        mine |= {i: part(m, own) for i, m in trained.items()}
        common = twin.mean([part(m, shared) for m in trained.values()], [twin.n[i] for i in clients])
    stranger = twin.train(common | part(twin.start, own), 4, names=own)
    twin.same(method(LOCAL), [*(common | mine[i] for i in range(4)), stranger], {"common": common})


@pytest.mark.parametrize(("tuned", "names"), [("all", (*BODY, *HEAD)), ("head", HEAD), ("body", BODY)])
def test_fedbabu_trains_bodies_under_the_first_head_and_tunes_at_the_end(twin, tuned, names):
    body = part(twin.start, BODY)
    for clients in TURNS:
        trained = [twin.train(twin.start | body, i, names=BODY) for i in clients]
        body = twin.mean([part(m, BODY) for m in trained], [twin.n[i] for i in clients])
    expected = [twin.train(twin.start | body, i, names=names, steps=3, lr=0.1) for i in range(5)]
    steps = ct.LocalSGD(steps=3, lr=0.1, batch_size=None)
    twin.same(ct.FedBABU(LOCAL, tune=steps, part=tuned), expected, {"common": body})
    with pytest.raises(ct.errors.ConfigError, match="two layers"):
        ct.fit(ct.FedBABU(LOCAL), twin.fed, ct.Task(lambda: nn.Linear(4, 3)), rounds=1)


def test_feddyn(twin):
    alpha, model, h = 0.3, twin.start, {k: 0 * t for k, t in twin.start.items()}
    slope = [dict(h) for _ in SIZES]
    for clients in TURNS:
        trained = []
        for i in clients:

            def objective(q, i=i, model=model):
                linear = sum((slope[i][k] * q[k]).sum() for k in q)
                return twin.loss(q, i) - linear + alpha / 2 * sum((q[k] - model[k]).square().sum() for k in q)

            trained.append(twin.descend(model, objective))
            slope[i] = {k: slope[i][k] - alpha * (trained[-1][k] - model[k]) for k in model}
        h = {k: h[k] - alpha / len(SIZES) * sum(m[k] - model[k] for m in trained) for k in h}
        mean = twin.mean(trained, [1] * len(trained))
        model = {k: mean[k] - h[k] / alpha for k in mean}
    twin.same(ct.FedDyn(LOCAL, alpha=alpha), [model] * 5, {"h": h})


def test_moon(twin):
    mu, tau, model, last = 2.0, 0.4, twin.start, [twin.start] * 5
    for clients in TURNS:
        trained = []
        for i in clients:

            def objective(q, i=i, model=model):
                x, _ = twin.rows[i]
                z, near, far = (twin.hidden(p, x) for p in (q, model, last[i]))
                a, b = ((F.cosine_similarity(z, other) / tau).exp() for other in (near, far))
                return twin.loss(q, i) - mu * (a / (a + b)).log().mean()

            trained.append(twin.descend(model, objective))
            last[i] = trained[-1]
        model = twin.mean(trained, [twin.n[i] for i in clients])
    twin.same(ct.MOON(LOCAL, mu=mu, temperature=tau), [model] * 5)


def test_fedala(twin):
    model, own, shares = twin.start, {}, [{k: torch.ones_like(twin.start[k]) for k in HEAD} for _ in SIZES]

    def start(i, model):
        if i not in own:
            return model, shares[i]
        w, gap = shares[i], {k: model[k] - own[i][k] for k in HEAD}
        for _ in range(3):
            q = {
                k: t.clone().requires_grad_() for k, t in (model | {k: own[i][k] + gap[k] * w[k] for k in HEAD}).items()
            }
            twin.loss(q, i).backward()
            w = {k: (w[k] - 5.0 * q[k].grad * gap[k]).clamp(0, 1) for k in HEAD}
        return model | {k: own[i][k] + gap[k] * w[k] for k in HEAD}, w

    for clients in TURNS:
        for i in clients:
            begin, shares[i] = start(i, model)
            own[i] = twin.train(begin, i)
        model = twin.mean([own[i] for i in clients], [twin.n[i] for i in clients])
    assert any(0 < float(w) < 1 for t in shares[3].values() for w in t.flatten())  # the weights did learn
    steps = ct.LocalSGD(steps=3, lr=5.0, batch_size=None)
    twin.same(ct.FedALA(LOCAL, mix=steps), [start(i, model)[0] for i in range(5)], {"model": model})


def test_fedrod(twin):
    model, own = twin.start, [{k: 0 * twin.start[k] for k in HEAD} for _ in SIZES]
    for clients in TURNS:
        trained = []
        for i in clients:
            x, y = twin.rows[i]
            prior = torch.bincount(y, minlength=3).double().log()  # −∞ for a class that the client does not have
            generic = model
            for _ in range(STEPS):
                fixed = generic
                z = twin.out(fixed, x)
                rep = twin.hidden(fixed, x)
                own[i] = twin.descend(
                    own[i],
                    lambda h, z=z, rep=rep, y=y: F.cross_entropy(z + rep @ h["2.weight"].T + h["2.bias"], y),
                    names=HEAD,
                    steps=1,
                )
                generic = twin.descend(
                    fixed, lambda q, x=x, y=y, prior=prior: F.cross_entropy(twin.out(q, x) + prior, y), steps=1
                )
            trained.append(generic)
        model = twin.mean(trained, [twin.n[i] for i in clients])
    expected = [model | {k: model[k] + h[k] for k in HEAD} for h in own]
    twin.same(ct.FedROD(LOCAL), expected, {"model": model})
    with pytest.raises(ct.errors.ConfigError, match="two linear heads"):
        ct.fit(ct.FedROD(), twin.fed, ct.Task(lambda: nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3))), rounds=1)


def test_fedproto(twin):
    lam, own, common = 2.0, [twin.start] * 5, {}

    def trained(i):
        x, y = twin.rows[i]
        here = dict(common)

        def objective(q):
            far = [
                (h - here[int(c)]).square().mean() if int(c) in here else 0
                for h, c in zip(twin.hidden(q, x), y, strict=True)
            ]
            return twin.loss(q, i) + lam * sum(far) / len(y)

        return twin.descend(own[i], objective)

    for clients in TURNS:
        found = {i: trained(i) for i in clients}
        own = [found.get(i, m) for i, m in enumerate(own)]
        for c in range(3):
            met = [twin.hidden(own[i], x)[y == c] for i in clients for x, y in [twin.rows[i]]]
            if sum(len(rows) for rows in met):
                common[c] = torch.cat(met).mean(0)
    result = twin.same(ct.FedProto(LOCAL, lam=lam), [*own[:4], trained(4)])
    prototypes = result.state.sums / result.state.shares.unsqueeze(1)
    for c, expected in common.items():
        torch.testing.assert_close(prototypes[c], expected)


def test_fedamp(twin):
    lam, alpha, sigma, own, met = 0.8, 0.5, 0.7, [twin.start] * 5, set()

    def far(a, b):
        return sum((a[k] - b[k]).square().sum() for k in a)

    for clients in TURNS:
        clouds = {}
        for i in clients:
            xi = {j: alpha * torch.exp(-far(own[i], own[j]) / sigma) / sigma for j in met - {i}}
            scale = max(1.0, float(sum(xi.values())))
            xi = {j: w / scale for j, w in xi.items()}
            mine = 1 - sum(xi.values())
            clouds[i] = {k: mine * own[i][k] + sum(w * own[j][k] for j, w in xi.items()) for k in twin.start}
        trained = {}
        for i in clients:

            def objective(q, i=i, cloud=clouds[i]):
                return twin.loss(q, i) + lam / (2 * alpha) * sum((q[k] - cloud[k]).square().sum() for k in q)

            trained[i] = twin.descend(own[i], objective)
        own = [trained.get(i, m) for i, m in enumerate(own)]
        met |= set(clients)
    stranger = twin.mean(own[:4], [1] * 4)
    twin.same(ct.FedAMP(LOCAL, lam=lam, alpha=alpha, sigma=sigma), [*own[:4], stranger])


def test_fedpac(twin):
    lam, body, head, mixed, common = 2.0, part(twin.start, BODY), part(twin.start, HEAD), {}, {}
    for clients in TURNS:
        told = {}
        for i in clients:
            x, y = twin.rows[i]
            model = body | mixed.get(i, head)
            f = twin.hidden(model, x)
            h = torch.stack([f[y == c].sum(0) / len(y) for c in range(3)])
            v = sum(float((y == c).double().mean()) * f[y == c].square().sum(1).mean() for c in set(y.tolist()))
            v = (
                v
                - sum(float((y == c).double().mean()) ** 2 * f[y == c].mean(0).square().sum() for c in set(y.tolist()))
            ) / len(y)
            model = twin.train(model, i, names=HEAD)
            here = dict(common)

            def objective(q, i=i, x=x, y=y, here=here):
                far = [
                    (z - here[int(c)]).square().mean() if int(c) in here else 0
                    for z, c in zip(twin.hidden(q, x), y, strict=True)
                ]
                return twin.loss(q, i) + lam * sum(far) / len(y)

            told[i] = twin.descend(model, objective, names=BODY), h, v
        n = [twin.n[i] for i in clients]
        body, head = (twin.mean([part(told[i][0], names) for i in clients], n) for names in (BODY, HEAD))
        for c in range(3):
            met = [twin.hidden(told[i][0], x)[y == c] for i in clients for x, y in [twin.rows[i]]]
            if sum(len(rows) for rows in met):
                common[c] = torch.cat(met).mean(0)
        for i in clients:
            share = _best_shares(told[i][1], [told[j][1] for j in clients], [told[j][2] for j in clients])
            mixed[i] = {k: sum(a * told[j][0][k] for a, j in zip(share, clients, strict=True)) for k in HEAD}
    expected = [body | mixed.get(i, head) for i in range(5)]
    result = twin.fitted(ct.FedPAC(LOCAL, lam=lam))
    models = result.evaluation.personal(result.evaluation.everyone())
    for i, model in enumerate(expected):
        for name, t in model.items():
            torch.testing.assert_close(
                models[name][i], t, rtol=1e-6, atol=1e-6, msg=lambda m, n=name, i=i: f"client {i}, {n}: {m}"
            )


def _best_shares(mine, others, spreads):
    """The minimiser of the variance plus squared bias over the simplex, by another solver."""
    from scipy.optimize import minimize

    gaps = torch.stack([(mine - h).flatten() for h in others]).numpy()
    p = gaps @ gaps.T + np.diag([float(v) for v in spreads])
    p, m = p / p.max(), len(others)
    whole = {"type": "eq", "fun": lambda a: a.sum() - 1, "jac": lambda a: np.ones(m)}
    how = {"bounds": [(0, 1)] * m, "method": "SLSQP", "constraints": whole, "options": {"ftol": 1e-18, "maxiter": 500}}
    found = minimize(lambda a: a @ p @ a, np.full(m, 1 / m), jac=lambda a: 2 * p @ a, **how)
    return found.x


def test_fesem(twin):
    """The first clusters are drawn, so the twin takes them from the first round's labels."""
    algorithm = ct.FeSEM(LOCAL, clusters=2)
    first = twin.fitted(algorithm, rounds=1)
    drawn = first.evaluation.env.states
    label = {i: int(drawn.values["label"][drawn.packed()[0][i]]) for i in TURNS[0]}
    assert set(label.values()) == {0, 1}
    centres = [twin.start, twin.start]

    def far(a, b):
        return sum((a[k] - b[k]).square().sum() for k in a)

    def best(i):
        return int(np.argmin([float(twin.loss(c, i)) for c in centres]))

    for turn, clients in enumerate(TURNS):
        trained = {}
        for i in clients:
            at = label.get(i, best(i)) if turn else label[i]
            trained[i] = twin.train(centres[at], i)
            label[i] = at if not turn else int(np.argmin([float(far(trained[i], c)) for c in centres]))
        groups = [[i for i in clients if label[i] == k] for k in range(2)]
        centres = [
            twin.mean([trained[i] for i in g], [twin.n[i] for i in g]) if g else c
            for g, c in zip(groups, centres, strict=True)
        ]
    result = twin.same(algorithm, [centres[label.get(i, best(i))] for i in range(5)])
    assert list(result.clusters)[:4] == [label[i] for i in range(4)]


def test_fedsoft(twin):
    lam, floor, clusters = 0.7, 0.05, 2
    algorithm = ct.FedSoft(LOCAL, clusters=clusters, lam=lam, floor=floor)
    centres = [{k: t[s] for k, t in twin.fitted(algorithm, rounds=0).state.centres.items()} for s in range(clusters)]
    own = {}

    def trained(i):
        x, y = twin.rows[i]
        losses = torch.stack([F.cross_entropy(twin.out(c, x), y, reduction="none") for c in centres])
        u = [max(float((losses.argmin(0) == s).double().mean()), floor) for s in range(clusters)]
        now = list(centres)

        def objective(q):
            return twin.loss(q, i) + lam / 2 * sum(
                w * sum((q[k] - c[k]).square().sum() for k in q) for w, c in zip(u, now, strict=True)
            )

        return twin.descend(centres[int(np.argmax(u))], objective), u

    for clients in TURNS:
        found = {i: trained(i) for i in clients}
        own |= {i: model for i, (model, _) in found.items()}
        centres = [
            twin.mean([m for m, _ in found.values()], [u[s] * twin.n[i] for i, (_, u) in found.items()])
            for s in range(clusters)
        ]
    expected = {k: torch.stack([c[k] for c in centres])[:, None].squeeze(1) for k in centres[0]}
    result = twin.same(algorithm, [own[i] if i in own else trained(i)[0] for i in range(5)], {"centres": expected})
    assert set(result.clusters) == {0, 1}


def test_fedrc(twin):
    algorithm = ct.FedRC(LOCAL, clusters=2, e_steps=3)
    first = twin.fitted(algorithm, rounds=0).state.models
    models = [{k: t[s] for k, t in first.items()} for s in range(2)]
    mass, omega = torch.full((2, 3), 1 / 6, dtype=torch.float64), [torch.full((2,), 0.5, dtype=torch.float64)] * 5

    def e_step(i, share):
        x, y = twin.rows[i]
        losses = torch.stack([F.cross_entropy(twin.out(m, x), y, reduction="none") for m in models])
        weight = share[:, None] * (-losses).exp() / (mass / mass.sum(1, keepdim=True)).clamp(min=1e-6)[:, y]
        return weight / weight.sum(0)

    for clients in TURNS:
        trained, sums = [], []
        for i in clients:
            x, y = twin.rows[i]
            gamma = e_step(i, omega[i])
            omega[i] = gamma.mean(1)
            trained.append(
                [
                    twin.descend(
                        m, lambda q, g=g, x=x, y=y: (g * F.cross_entropy(twin.out(q, x), y, reduction="none")).mean()
                    )
                    for m, g in zip(models, gamma, strict=True)
                ]
            )
            sums.append({"mass": torch.stack([gamma[:, y == c].sum(1) / len(y) for c in range(3)], 1)})
        n = [twin.n[i] for i in clients]
        models = [twin.mean([t[s] for t in trained], n) for s in range(2)]
        mass = twin.mean(sums, n)["mass"]
    expected = []
    for i in range(5):
        share = omega[i]
        for _ in range(3):
            share = e_step(i, share).mean(1)
        expected.append(models[int(share.argmax())])
    twin.same(algorithm, expected, {"mass": mass})


def test_pacfl(twin):
    """Group by the largest singular vectors' angles, then averages inside groups."""
    bases = [np.linalg.svd(x.numpy().T)[0][:, :2] for x, _ in twin.rows]
    angle = np.array([[np.degrees(np.arccos(min(np.linalg.svd(a.T @ b)[1][0], 1))) for a in bases] for b in bases])
    cut = float(np.sort(angle[np.triu_indices(5, 1)])[3])
    label = _average_linkage(angle, cut)
    assert 1 < len(set(label)) < 5
    models = dict.fromkeys(label, twin.start)
    for clients in TURNS:
        trained = {i: twin.train(models[label[i]], i) for i in clients}
        for g in {label[i] for i in clients}:
            here = [i for i in clients if label[i] == g]
            models[g] = twin.mean([trained[i] for i in here], [twin.n[i] for i in here])
    twin.same(ct.PACFL(LOCAL, directions=2, threshold=cut), [models[g] for g in label])


def _average_linkage(distance, cut):
    groups = [[i] for i in range(len(distance))]
    while len(groups) > 1:
        pairs = [
            (np.mean([distance[i, j] for i in a for j in b]), m, n)
            for m, a in enumerate(groups)
            for n, b in enumerate(groups)
            if m < n
        ]
        best, m, n = min(pairs)
        if best > cut:
            break
        groups[m] += groups.pop(n)
    return [next(g for g, members in enumerate(groups) if i in members) for i in range(len(distance))]
