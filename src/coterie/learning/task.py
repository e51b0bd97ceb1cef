"""Task: a model factory, a loss and metrics, used as functions of a parameter dictionary."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from coterie.data.federation import Federation
from coterie.errors import TaskError
from coterie.learning import models, passes
from coterie.learning.metrics import FOR_NUMBERS, LOSSES, LOWER_IS_BETTER, METRICS, SampleLoss
from coterie.learning.networks import Network
from coterie.tree import Params

_CPU_RNG: list[int] = []  # fork_rng over no accelerator
_GENERATOR = threading.RLock()  # modules draw their weights from torch's one generator: one thread at a time
_HEAVY = 128 << 10  # bytes of a sample's convolutions above which the library's kernels are faster, as measured
_ROWS = 64  # rows a task is tried on before training


@dataclass(frozen=True)
class Task:
    """What is learnt: `model` makes a fresh `nn.Module`; `loss` is a name or a function to one number per sample;
    `metric` is a name or several, the first being the one gains are measured in (None: mse for the loss
    mse, else accuracy)."""

    model: Callable[[], nn.Module]
    loss: str | SampleLoss = "cross_entropy"
    metric: str | tuple[str, ...] | list[str] | None = None
    _local: threading.local = field(default_factory=threading.local, init=False, repr=False, compare=False)
    _networks: dict[Any, Network | None] = field(default_factory=dict, init=False, repr=False, compare=False)
    _master: nn.Module = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.loss, str) and self.loss not in LOSSES:
            raise TaskError(f"loss must be one of {sorted(LOSSES)} or a function; got {self.loss!r}.")
        for name in self.metrics:
            if name not in METRICS:
                raise TaskError(f"metric must be one of {sorted(METRICS)}; got {name!r}.")
        if not self.metrics:
            raise TaskError("A task needs at least one metric; got none. Use for example metric='accuracy'.")
        if not callable(self.model) or isinstance(self.model, nn.Module):
            raise TaskError(
                "model must be a function that makes a fresh nn.Module, e.g. lambda: nn.Linear(20, 3); "
                f"got a {type(self.model).__name__}."
            )
        object.__setattr__(self, "_master", self.module(0))

    @property
    def metrics(self) -> tuple[str, ...]:
        if self.metric is None:
            return ("mse",) if self.loss == "mse" else ("accuracy",)
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

    @cached_property
    def convolutional(self) -> bool:
        """Convolutions without a `network` run client by client: batching the library's gains nothing on a CPU."""
        return any(isinstance(m, nn.modules.conv._ConvNd) for m in self._master.modules())

    # ---- the model as a function -------------------------------------------------------------------------------------

    @property
    def skeleton(self) -> nn.Module:
        """A module whose weights are never used, one per thread: `functional_call` swaps its parameters while it runs."""
        return self._mine("skeleton")

    @property
    def trainee(self) -> nn.Module:
        """A second module of this thread, which `functional_call` never touches: its parameters may be overwritten."""
        return self._mine("trainee")

    def _mine(self, name: str) -> nn.Module:
        module: nn.Module | None = getattr(self._local, name, None)
        if module is None:
            module = copy.deepcopy(self._master)
            setattr(self._local, name, module)
        return module

    def module(self, seed: int = 0, params: Params | None = None) -> nn.Module:
        """A fresh module, initialised from the seed or holding the given parameters; the global RNG stays as it was."""
        with _GENERATOR, torch.random.fork_rng(devices=_CPU_RNG):
            torch.manual_seed(seed)
            module = self.model()
        if not isinstance(module, nn.Module):
            raise TaskError(f"The model factory must return an nn.Module; got {type(module).__name__}.")
        refuse_unsupported(module)
        if params is not None:
            self.require(params)
            module.to(next(iter(params.values())).dtype)
            with torch.no_grad():
                for name, parameter in module.named_parameters():
                    if name in params:  # frozen ones are the module's own
                        parameter.copy_(params[name])
        return module

    def init(self, seed: int, dtype: torch.dtype = torch.float32) -> Params:
        """Start parameters, a function of the seed alone; frozen ones (requires_grad=False) stay inside the module."""
        named = self.module(seed).named_parameters()
        params = {name: p.detach().to(dtype).clone() for name, p in named if p.requires_grad}
        if not params:
            raise TaskError("The model has no parameters to learn. Add a layer with weights, or unfreeze one.")
        return params

    @cached_property
    def trainable(self) -> frozenset[str]:
        """The names a parameter dictionary must have; frozen parameters stay inside the module."""
        return frozenset(name for name, p in self._master.named_parameters() if p.requires_grad)

    def require(self, params: Params) -> None:
        """Refuse a dictionary without exactly the trainable names: a module would fill the gaps with weights of its own."""
        if params.keys() == self.trainable:
            return
        missing, unknown = sorted(self.trainable - params.keys()), sorted(params.keys() - self.trainable)
        raise TaskError(
            f"A parameter dictionary needs exactly the model's trainable names; missing: {', '.join(missing) or 'none'}; "
            f"unknown: {', '.join(unknown) or 'none'}. To train a part, pass the whole dictionary and fit(…, train=names)."
        )

    def network(self, names: tuple[str, ...], sample: torch.Size) -> Network | None:
        """The form of the module with gradients written by hand, for chunks of clients; None where there is none, or
        where the library's kernels are faster."""
        if (names, sample) not in self._networks:
            network = Network.of(self._master, names, self.loss, sample)
            heavy = network is not None and network.bytes(sample) > _HEAVY
            self._networks[names, sample] = None if heavy else network
        return self._networks[names, sample]

    def outputs(self, params: Params, x: Tensor) -> Tensor:
        self.require(params)
        if passes.replaceable(x):
            network = self.network(tuple(params), x.shape[1:])
            if network is not None:
                return passes.outputs(network, x, tuple(params.values()))
        result: Tensor = functional_call(self.skeleton, params, (x,))
        return result

    def sample_losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        function = LOSSES[self.loss] if isinstance(self.loss, str) else self.loss
        losses = function(outputs, y)
        if losses.shape != y.shape:
            raise TaskError(
                f"A loss must give one number per sample, shape {tuple(y.shape)}; got {tuple(losses.shape)}. "
                "Use reduction='none'."
            )
        return losses

    def check(self, federation: Federation, *, look: bool = True) -> None:
        """Run some samples through, so that a misfit is said before training starts. A private run does not `look` at
        anybody's values: their shape is enough, and an error may not depend on one client's data."""
        x, y, owner = federation.some_rows(_ROWS)
        if not look:
            x, y = torch.zeros_like(x), torch.zeros_like(y)
        params = self.init(0, x.dtype)
        outputs = self._tried(params, x)
        self._check_outputs(outputs, federation)
        try:
            losses = self.sample_losses(outputs, y)
        except RuntimeError as error:
            raise TaskError(f"The loss does not fit the model and data: {str(error).splitlines()[0]}.") from None
        for bad in (~torch.isfinite(losses)).nonzero()[:1]:
            raise TaskError(
                f"The loss of a fresh model must be a finite number for every sample; it is {float(losses[bad])} for one of "
                f"client {federation.name(int(owner[int(bad)]))}. Check the loss, or that client's data for extreme values."
            )

    def _tried(self, params: Params, x: Tensor) -> Tensor:
        """Outputs for some samples; a model that draws random numbers or changes its buffers is refused."""
        kept = {name: (b, b.clone()) for name, b in self.skeleton.named_buffers()}
        with _GENERATOR, torch.random.fork_rng(devices=_CPU_RNG), torch.no_grad():
            before = torch.get_rng_state()
            try:
                outputs = self.outputs(params, x)
            except (RuntimeError, ValueError, IndexError, TypeError) as error:
                raise TaskError(
                    f"The model cannot take this federation's samples of shape {tuple(x.shape[1:])}: "
                    f"{str(error).splitlines()[0]}."
                ) from None
            if not torch.equal(before, torch.get_rng_state()):
                raise TaskError(
                    "The model draws from a global random generator (dropout?), which makes runs irreproducible. "
                    "Remove that part or use weight_decay."
                )
        after = dict(self.skeleton.named_buffers())
        for name, (same, value) in kept.items():
            if after.get(name) is not same or not torch.equal(same.nan_to_num(), value.nan_to_num()):
                del self._local.skeleton  # it is no longer as it was made
                raise TaskError(
                    f"The model changes its buffer '{name}' when it runs, and clients would see one another's data in it. "
                    "Compute it anew in every call, or make it a parameter."
                )
        return outputs

    def _check_outputs(self, outputs: Tensor, federation: Federation) -> None:
        width = outputs.shape[-1] if outputs.dim() > 1 else 1
        classes = federation.n_outputs if federation.kind == "classification" else None
        if self.loss == "cross_entropy":
            if classes is None:
                raise TaskError("cross_entropy needs classes; this federation holds numbers. Use loss='mse'.")
            if width < classes:
                raise TaskError(f"The model has {width} outputs for {classes} classes. Give it one per class.")
        if self.loss in ("mse", "bce") and width != 1:
            raise TaskError(f"{self.loss} needs a model with one output; this one has {width}. Use nn.Linear(…, 1).")
        if self.loss == "bce" and classes != 2:
            raise TaskError(f"bce needs two classes; this federation has {classes or 'numbers'}. Use cross_entropy.")
        for name in self.metrics:
            if name not in FOR_NUMBERS and classes is None:
                raise TaskError(f"The metric {name} needs classes; this federation holds numbers. Use 'mse' or 'r2'.")
            if name in FOR_NUMBERS and width != 1:
                raise TaskError(f"The metric {name} needs a model with one output; this one has {width}.")


def refuse_unsupported(module: nn.Module) -> None:
    """BatchNorm's running statistics and Dropout's hidden random numbers do not fit pure client functions."""
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            raise TaskError(
                f"BatchNorm keeps running statistics that clients would share; got {type(part).__name__} at '{name}'. "
                "Use nn.GroupNorm or nn.LayerNorm instead."
            )
        if isinstance(part, nn.modules.instancenorm._InstanceNorm) and part.track_running_stats:
            raise TaskError(
                f"Running statistics would be shared by clients; got {type(part).__name__} at '{name}'. "
                "Use track_running_stats=False."
            )
        if isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0:
            raise TaskError(
                f"Dropout draws from a global random generator, which makes runs irreproducible; got "
                f"{type(part).__name__}(p={part.p}) at '{name}'. Remove it or use weight_decay."
            )
