"""A prior over clients' models gives an algorithm: this file has the term that each prior adds to a client's loss.

Section 3 (equation 12, P-1) of
"A Statistical Framework for Personalized Federated Learning and Estimation: Theory, Algorithms, and Privacy" (Kaan
Ozkara, Antonious M. Girgis, Deepesh Data, Suhas Diggavi, 2023, https://arxiv.org/abs/2207.01771).

Clients' models θ_i are draws from a population; a client minimises −log p(data | θ) − log p(θ). The second term is

| population of models           | −log p(θ), without constants                  | a step           | algorithm       |
|--------------------------------|-----------------------------------------------|------------------|-----------------|
| N(μ, σ²)                       | Σ (θ−μ)²/(2σ²) + log σ                        | ℓ2 pull to μ     | `GaussianPrior` |
| Laplace(μ, b)                  | Σ |θ−μ|/b + log b                             | ℓ1 pull to μ     | `LaplacePrior`  |
| Σ_l p_l N(μ_l, σ_l²)           | −log Σ_l p_l σ_l^(−d) exp(−‖θ−μ_l‖²/(2σ_l²))  | pulls to all μ_l | `MixturePrior`  |
| p_l at the point μ_l           | −log p_l                                      | a choice of μ_l  | `DiscretePrior` |
| exp(−KL(p_μ‖p_θ)/(2ψ))         | KL(p_μ‖p_θ)/(2ψ) + ½ log(2ψ)                  | distillation     | `AdaPeD`        |

A task's loss is the *mean* over a client's n samples, so the prior has the weight 1/n: the more data a client has, the less
it is pulled.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.base.tree import Params
from coterie.errors import ConfigError
from coterie.exchange.messages import Context
from coterie.learning.task import Task


def prior_weight(ctx: Context, noise_variance: float) -> Tensor:
    """The weight of −log p(θ) relative to the mean loss: 1/n, and 2σ_x²/n where the loss is a squared error of variance σ_x²
    (−log p(y) is loss/(2σ_x²) then)."""
    return (2 * noise_variance if ctx.task.loss == "mse" else 1.0) / ctx.n.clamp(min=1)


# ---- densities of models ---------------------------------------------------------------------------------------------


def mixture(params: Params, means: Params, variances: Tensor, shares: Tensor) -> Tensor:
    """−log Σ_l p_l N(θ; μ_l, σ_l²), without its constant: minus outside, p_l inside, d/2 as the power (E14)."""
    return -torch.logsumexp(log_shares(params, means, variances, shares), 0)


def log_shares(params: Params, means: Params, variances: Tensor, shares: Tensor) -> Tensor:
    """log p_l − (d/2) log σ_l² − ‖θ−μ_l‖²/(2σ_l²) for every component l; their softmax are the responsibilities."""
    square = torch.stack([((t - means[name]) ** 2).flatten(1).sum(1) for name, t in params.items()]).sum(0)
    d = sum(t.numel() for t in params.values())
    return torch.log(shares) - d / 2 * torch.log(variances) - square / (2 * variances)


def blend(models: Params, weights: Tensor) -> Params:
    """The weighted sum of stacked models."""
    return {name: (t * weights.reshape(-1, *[1] * (t.dim() - 1))).sum(0) for name, t in models.items()}


def towards(value: Tensor, centre: Tensor, most: Tensor | float) -> Tensor:
    """The proximal step of an ℓ1 pull: `value` moved towards `centre` by `most`, and no further than there."""
    gap = value - centre
    return centre + gap.sign() * (gap.abs() - most).clamp(min=0)


# ---- distillation: a density of predictions --------------------------------------------------------------------------


def require_predictions(task: Task, owner: object, losses: tuple[str, ...] = ("cross_entropy", "mse", "bce")) -> None:
    """Refuse a loss by which predictions cannot be compared or mixed."""
    if task.loss not in losses:
        got = f"loss={task.loss!r}" if isinstance(task.loss, str) else "your own loss"
        raise ConfigError(
            f"{type(owner).__name__} compares predictions, as class probabilities or numbers, and needs one of the losses "
            f"{', '.join(losses)}; got {got}."
        )


def _as_classes(task: Task, z: Tensor) -> Tensor:
    """Logits of all classes; one output is the logit of class 1."""
    if task.loss == "cross_entropy":
        return z
    z = z.reshape(z.shape[0], 1)
    return torch.cat([torch.zeros_like(z), z], 1)


def _shares(mask: Tensor) -> Tensor:
    return (mask / mask.sum().clamp(min=1)).unsqueeze(-1)


def distillation(batch: Context, teacher: Tensor, student: Tensor) -> Tensor:
    """f_KD: the mean over a batch of KL(p_teacher ‖ p_student) of two networks' outputs, no temperature. For squared
    losses it is the squared difference, which is the divergence of Gaussians of the variance the loss implies."""
    task, share = batch.task, _shares(batch.mask)
    if task.loss == "mse":
        return (share * (teacher - student).reshape(-1, 1) ** 2).sum()
    t, s = (F.log_softmax(_as_classes(task, z), -1) for z in (teacher, student))
    return (share * t.exp() * (t - s)).sum()


def by_student(batch: Context, teacher: Tensor, student: Tensor) -> Tensor:
    """∂f_KD/∂z_student: p_student − p_teacher, every sample's share in the mean."""
    task, share = batch.task, _shares(batch.mask)
    if task.loss == "mse":
        return (2 * share * (student - teacher).reshape(-1, 1)).reshape(student.shape)
    t, s = (F.softmax(_as_classes(task, z), -1) for z in (teacher, student))
    return _from_classes(share * (s - t), student)


def by_teacher(batch: Context, teacher: Tensor, student: Tensor) -> Tensor:
    """∂f_KD/∂z_teacher: p_teacher ∘ (log(p_teacher/p_student) − KL)."""
    task, share = batch.task, _shares(batch.mask)
    if task.loss == "mse":
        return by_student(batch, student, teacher)
    t, s = (F.log_softmax(_as_classes(task, z), -1) for z in (teacher, student))
    p, gap = t.exp(), t - s
    return _from_classes(share * p * (gap - (p * gap).sum(-1, keepdim=True)), teacher)


def _from_classes(d: Tensor, z: Tensor) -> Tensor:
    return d if d.shape == z.shape else d[:, 1].reshape(z.shape)


def loss_and_slope(batch: Context, z: Tensor) -> tuple[Tensor, Tensor]:
    """The task's mean loss of outputs, and its derivative by them."""
    task, share = batch.task, _shares(batch.mask)
    loss = (task.sample_losses(z, batch.y) * share.squeeze(-1)).sum()
    if task.loss == "mse":
        return loss, (2 * share * (z.reshape(-1, 1) - batch.y.reshape(-1, 1))).reshape(z.shape)
    logits = _as_classes(task, z)
    return loss, _from_classes(share * (logits.softmax(-1) - _one_hot(batch.y, logits)), z)


def _one_hot(y: Tensor, logits: Tensor) -> Tensor:
    return (y.unsqueeze(-1) == torch.arange(logits.shape[-1])).to(logits.dtype)
