"""FedAMP: the server sends every client a mixture of models in which similar ones weigh more.

"Personalized Cross-Silo Federated Learning on Non-IID Data" (Yutao Huang, Lingyang Chu, Zirui Zhou, Lanjun Wang,
Jiangchuan Liu, Jian Pei, Yong Zhang, 2021, https://arxiv.org/abs/2007.03797).

Symbols of Algorithm 1: w_i → models (row i) and the client's state, u_i → cloud, α_k → alpha, λ → lam, and A(d) = 1 −
e^{−d/σ} with σ → sigma. The server's step on Σ A(‖w_i − w_j‖²) is u_i = Σ_j ξ_ij w_j with ξ_ij = α A'(‖w_i − w_j‖²) and
ξ_ii = 1 − Σ_{j≠i} ξ_ij. A client then takes local steps on F_i(w) + (λ/2α)‖w − u_i‖² from its own model. If the ξ_ij
exceed 1 together, they are scaled to 1, so that u_i stays a mixture; the paper asks for an α that is small enough. A
client that never took part has the mean of the others' models.

Public code departs: PFLlib's penalty is the norm, not its square, and only the models of the last round are mixed. The
mixture shows the server every client's model, so there is no private form.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from coterie.algorithms.families import Trained
from coterie.base.annotations import guarded
from coterie.base.arguments import NotNegative, Positive
from coterie.base.tree import Params, Tree, flat_vector, like_vector, repeat, take, tree_map
from coterie.exchange.messages import Ask, Cohort, Context, Exchange, From, Ints, Population, Up, one_per
from coterie.learning.task import Task


@dataclass(frozen=True)
class FedAMPState:
    models: Params = field(metadata=one_per("client"))  # (N, …)
    met: Tensor = field(metadata=one_per("client"))  # (N,): whose model was ever received
    mean: Params  # of these


@guarded
@dataclass(frozen=True, kw_only=True)
class FedAMP(Trained):
    """`lam` is λ, the strength of the pull; `alpha` is α, the server's step; `sigma` is σ, the squared distance at which
    models stop to matter."""

    way = "shrunk"
    individual = True

    lam: NotNegative = 1.0
    alpha: Positive = 1.0
    sigma: Positive = 1.0

    def init(self, task: Task, population: Population, seed: int, start: Params) -> FedAMPState:
        n = population.n_clients
        return FedAMPState(repeat(start, n), torch.zeros(n, dtype=torch.bool), start)

    def client(self, ctx: Context) -> Tree:
        return {"model": ctx.initial}

    def round(self, state: FedAMPState, cohort: Cohort) -> Exchange[FedAMPState]:
        cloud = self._clouds(state, cohort.clients)
        reply = yield Ask(self.train, cohort.clients, each={"cloud": cloud}, updates={"model": From("cloud")})
        if not len(reply.clients):
            return state
        here = torch.from_numpy(reply.clients)
        models = tree_map(lambda t, new: t.index_copy(0, here, new), state.models, reply.values["model"])
        met = state.met.index_fill(0, here, True)
        return FedAMPState(models, met, tree_map(lambda t: t[met].mean(0), models))

    def _clouds(self, state: FedAMPState, clients: Ints) -> Params:
        """u_i of these clients, from all models received so far."""
        here, known = torch.from_numpy(clients), state.met.nonzero().squeeze(1)
        rows = flat_vector(state.models, 1).double()
        square = torch.cdist(rows[here], rows[known], compute_mode="donot_use_mm_for_euclid_dist").square()
        xi = self.alpha * torch.exp(-square / self.sigma) / self.sigma
        xi = xi.masked_fill(here.unsqueeze(1) == known, 0.0)
        xi = xi / xi.sum(1, keepdim=True).clamp(min=1)
        mixed = xi @ rows[known] + (1 - xi.sum(1, keepdim=True)) * rows[here]
        stacked = like_vector(mixed, state.mean, 1)
        clouds: Params = tree_map(lambda t, like: t.to(like.dtype), stacked, state.mean)
        return clouds

    def train(self, ctx: Context, cloud: Params) -> Up:
        model, loss = self.local.fit(ctx, ctx.state["model"], anchor=cloud, pull=self.lam / self.alpha)
        return Up(send={"model": model}, state={"model": model}, info={"loss": loss})

    def personal(self, ctx: Context, state: FedAMPState) -> Params:
        met, own = take(state.met, ctx.index), take(state.models, ctx.index)
        chosen: Params = tree_map(lambda mine, mean: torch.where(met, mine, mean), own, state.mean)
        return chosen
