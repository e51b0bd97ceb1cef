"""Task: a model factory, a loss and metrics, used as functions of a parameter dictionary."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.func import functional_call

from coterie import models
from coterie.errors import TaskError
from coterie.federation import Federation
from coterie.metrics import LOSSES, LOWER_IS_BETTER, METRICS, SampleLoss
from coterie.tree import Params

_CPU_RNG: list[int] = []  # fork_rng over no accelerator


@dataclass(frozen=True)
class Task:
    """What is learnt: `model` makes a fresh `nn.Module`; `loss` is a name or a function to one number a sample;
    `metric` is a name or several, the first being the one gains are measured in."""

    model: Callable[[], nn.Module]
    loss: str | SampleLoss = "cross_entropy"
    metric: str | tuple[str, ...] | list[str] = "accuracy"
    _local: threading.local = field(default_factory=threading.local, init=False, repr=False, compare=False)
    _master: nn.Module = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.loss, str) and self.loss not in LOSSES:
            raise TaskError(f"loss must be one of {sorted(LOSSES)} or a function; got {self.loss!r}.")
        for name in self.metrics:
            if name not in METRICS:
                raise TaskError(f"metric must be one of {sorted(METRICS)}; got {name!r}.")
        if not callable(self.model):
            raise TaskError("model must be a function that makes a fresh nn.Module, e.g. lambda: nn.Linear(20, 3).")
        object.__setattr__(self, "_master", self.module(0))

    @property
    def metrics(self) -> tuple[str, ...]:
        return (self.metric,) if isinstance(self.metric, str) else tuple(self.metric)

    @property
    def sign(self) -> int:
        """+1 when more of the first metric is better, −1 when less is."""
        return -1 if self.metrics[0] in LOWER_IS_BETTER else 1

    @classmethod
    def default(cls, federation: Federation) -> Task:
        """Logistic or linear regression for tables, a small network for images."""
        images = federation.x.dim() > 2
        hidden: tuple[int, ...] = (100,) if images else ()
        network = models.mlp(federation.n_features, hidden, federation.n_outputs)
        if federation.kind == "regression":
            return cls(network, "mse", ("mse", "r2"))
        metrics = ["accuracy", "balanced_accuracy", "log_loss"]
        if federation.n_outputs == 2:
            metrics.insert(2, "auc")
        return cls(network, "cross_entropy", tuple(metrics))

    # ---- the model as a function -------------------------------------------------------------------------------------

    @property
    def skeleton(self) -> nn.Module:
        """A module whose weights are never used. One a thread: `functional_call` swaps its parameters while it runs."""
        module: nn.Module | None = getattr(self._local, "module", None)
        if module is None:
            module = copy.deepcopy(self._master)
            self._local.module = module
        return module

    def module(self, seed: int = 0, params: Params | None = None) -> nn.Module:
        """A fresh module, initialised from the seed or holding the given parameters; the global RNG stays as it was."""
        with torch.random.fork_rng(devices=_CPU_RNG):
            torch.manual_seed(seed)
            module = self.model()
        if not isinstance(module, nn.Module):
            raise TaskError(f"The model factory must return an nn.Module; got {type(module).__name__}.")
        refuse_unsupported(module)
        if params is not None:
            with torch.no_grad():
                for name, parameter in module.named_parameters():
                    parameter.copy_(params[name])
        return module

    def init(self, seed: int, dtype: torch.dtype = torch.float32) -> Params:
        """Start parameters, a function of the seed alone."""
        params = {name: p.detach().to(dtype).clone() for name, p in self.module(seed).named_parameters()}
        if not params:
            raise TaskError("The model has no parameters to learn; got an empty module.")
        return params

    def outputs(self, params: Params, x: Tensor) -> Tensor:
        result: Tensor = functional_call(self.skeleton, params, (x,))
        return result

    def sample_losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        function = LOSSES[self.loss] if isinstance(self.loss, str) else self.loss
        losses = function(outputs, y)
        if losses.shape != y.shape:
            raise TaskError(
                f"A loss must give one number a sample, shape {tuple(y.shape)}; got {tuple(losses.shape)}. "
                "Use reduction='none'."
            )
        return losses

    def check(self, federation: Federation) -> None:
        """Run one sample through, so that a misfit is said before training starts."""
        x, y = federation.train(federation.clients[0])
        params = self.init(0, x.dtype)
        try:
            outputs = self.outputs(params, x[:2])
        except RuntimeError as error:
            raise TaskError(
                f"The model cannot take this federation's samples of shape {tuple(x.shape[1:])}: "
                f"{str(error).splitlines()[0]}."
            ) from None
        if self.loss == "cross_entropy":
            if federation.kind != "classification":
                raise TaskError("cross_entropy needs classes; this federation holds numbers. Use loss='mse'.")
            if outputs.shape[-1] < federation.n_outputs:
                raise TaskError(
                    f"The model has {outputs.shape[-1]} outputs for {federation.n_outputs} classes. Give it one a class."
                )
        self.sample_losses(outputs, y[:2])


def refuse_unsupported(module: nn.Module) -> None:
    """BatchNorm's running statistics and Dropout's hidden random numbers do not fit pure client functions."""
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            raise TaskError(
                f"BatchNorm keeps running statistics that clients would share; got {type(part).__name__} at '{name}'. "
                "Use nn.GroupNorm or nn.LayerNorm instead."
            )
        if isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0:
            raise TaskError(
                f"Dropout draws from a global random generator, which makes runs irreproducible; got "
                f"{type(part).__name__}(p={part.p}) at '{name}'. Remove it or use weight_decay."
            )
