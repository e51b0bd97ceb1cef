"""Task: a model factory, a loss and metrics, used as functions of a parameter dictionary.

The file is long because a model is checked by running it, and these trials share its modules.
"""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from coterie.base.annotations import guarded
from coterie.base.disk import said
from coterie.base.tree import Params
from coterie.data.federation import Federation
from coterie.errors import CoterieError, TaskError
from coterie.learning import models
from coterie.learning.batched import forward_and_back, network_traits
from coterie.learning.batched.drawing import Drawing
from coterie.learning.batched.network_traits import Traits
from coterie.learning.batched.networks import Network
from coterie.learning.metrics import LOSSES, SampleLoss
from coterie.learning.scoring import Scorer

_CPU = torch.device("cpu")
_CPU_RNG: list[int] = []  # fork_rng over no accelerator
_GENERATOR = threading.RLock()  # modules draw their weights from torch's one generator: one thread at a time
_HEAVY = 128 << 10  # bytes of a sample's convolutions above which the library's kernels are faster, as measured
_ROWS = 64  # rows a task is tried on before training
_TRIED = 8  # of them, where clients are tried together


@guarded
@dataclass(frozen=True)
class Task:
    """A learning task: `model` makes a fresh `nn.Module`; `loss` is a name or a function to one number per sample;
    `metric` is a name, a function, an object with torchmetrics' methods, a `Scorer`, or several of them, the first being the
    one gains are measured in (None: mse for the loss mse, else accuracy)."""

    model: Callable[[], nn.Module]
    loss: str | SampleLoss = "cross_entropy"
    metric: Any = None
    _local: threading.local = field(default_factory=threading.local, init=False, repr=False, compare=False)
    _networks: dict[Any, Network | None] = field(default_factory=dict, init=False, repr=False, compare=False)
    _master: nn.Module = field(init=False, repr=False, compare=False)
    _masters: dict[Any, nn.Module] = field(default_factory=dict, init=False, repr=False, compare=False)
    _found: dict[Any, Traits] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not callable(self.loss) and not (isinstance(self.loss, str) and self.loss in LOSSES):
            raise TaskError(f"loss must be one of {sorted(LOSSES)} or a function; got {self.loss!r}.")
        if not self.metrics:
            raise TaskError("A task needs at least one metric; got none. Use for example metric='accuracy'.")
        if len(set(self.metrics)) < len(self.metrics):
            raise TaskError(f"Metrics need different names; got {list(self.metrics)}. Use Scorer(function, name=…).")
        if not callable(self.model) or isinstance(self.model, nn.Module):
            raise TaskError(
                "model must be a function that makes a fresh nn.Module, e.g. lambda: nn.Linear(20, 3); "
                f"got a {type(self.model).__name__}."
            )
        object.__setattr__(self, "_master", self.module(0))

    @cached_property
    def scorers(self) -> tuple[Scorer, ...]:
        """The metrics with their functions."""
        given = ("mse" if self.loss == "mse" else "accuracy") if self.metric is None else self.metric
        several = tuple(given) if isinstance(given, tuple | list) else (given,)
        return tuple(one if isinstance(one, Scorer) else Scorer(one) for one in several)

    @property
    def metrics(self) -> tuple[str, ...]:
        return tuple(scorer.name for scorer in self.scorers)

    @property
    def sign(self) -> int:
        """+1 when more of the first metric is better, −1 when less is."""
        return -1 if self.scorers[0].lower_is_better else 1

    @classmethod
    def default(cls, federation: Federation) -> Task:
        """Logistic or linear regression for tables, a small network for images."""
        images = federation.x.dim() > 2
        hidden: tuple[int, ...] = (100,) if images else ()
        network = models.mlp(federation.n_features, hidden, federation.n_outputs)
        if not federation.x.is_floating_point() and federation.x.dtype != torch.uint8:
            raise TaskError("Whole-number ids need a model that reads them; pass task=Task(ct.models.lstm(…)), say.")
        if federation.y.dim() > 1 and federation.kind == "classification":
            raise TaskError(
                "A sequence of labels needs a model that gives one; pass task=Task(ct.models.lstm(…)), say."
            )
        if federation.kind == "regression":
            return cls(network, "mse", ("mse", "r2"))
        if federation.kind == "multilabel":
            return cls(network, "bce", ("accuracy", "f1", "auc", "log_loss"))
        metrics = ["accuracy", "balanced_accuracy", "log_loss"]
        if federation.n_outputs == 2:
            metrics.insert(2, "auc")
        return cls(network, "cross_entropy", tuple(metrics))

    def __reduce__(self) -> Any:
        """Pickled and copied as it was made, with what `check` found; modules and thread-local objects are made again."""
        return type(self), (self.model, self.loss, self.metric), {"_found": dict(self._found)}

    # ---- what the network is like -------------------------------------------------------------------------------------

    @cached_property
    def convolutional(self) -> bool:
        """Convolutions without a `network` run client by client: batching the library's gains nothing on a CPU."""
        return any(isinstance(m, nn.modules.conv._ConvNd) for m in self._master.modules())

    @property
    def alone(self) -> bool:
        """Whether clients must run one at a time, without padding: BatchNorm, recurrent layers, and what `check` found."""
        return self._shown_alone or self.traits.alone

    @cached_property
    def _shown_alone(self) -> bool:
        return network_traits.runs_alone(self._master)

    @property
    def one_by_one(self) -> bool:
        """Whether clients run one at a time, because they must or because it is as fast."""
        return self.convolutional or self.alone

    @property
    def traits(self) -> Traits:
        """The result of the last `check`."""
        return self._found.get("last", Traits())

    @cached_property
    def statistics(self) -> frozenset[str]:
        """Running statistics of normalising layers: entries of a parameter dictionary that move without a gradient."""
        return network_traits.statistics(self._master)

    @cached_property
    def normalising(self) -> frozenset[str]:
        """Everything that batch normalisation has: its parameters and statistics."""
        return network_traits.normalising(self._master) & self.names

    # ---- the model as a function -------------------------------------------------------------------------------------

    @property
    def skeleton(self) -> nn.Module:
        """A module of this thread whose weights are never used: `functional_call` swaps its parameters while it runs."""
        return self._mine("skeleton", network_traits.own_dtype(self._master))

    def judge(self, like: Tensor) -> nn.Module:
        """The same for predictions, in a tensor's type and on its device: in evaluation mode."""
        return self._mine("judge", like.dtype, like.device)

    def trainee(self, like: Tensor) -> nn.Module:
        """A second module of this thread, which `functional_call` never touches: its parameters may be overwritten."""
        return self._mine("trainee", like.dtype, like.device)

    def _mine(self, name: str, dtype: torch.dtype, device: torch.device = _CPU) -> nn.Module:
        kept: dict[Any, tuple[nn.Module, network_traits.Kept]] = self._local.__dict__
        key = f"{name} {dtype} {device}"
        if key not in kept:
            module = copy.deepcopy(self.prepare(dtype, device)).train(name != "judge")
            kept[key] = module, network_traits.fixed_now(module)
        return kept[key][0]

    def require_same_buffers(self) -> None:
        """Refuse a network that has changed a buffer or a frozen part since its module was made for this thread."""
        for module, before in self._local.__dict__.values():
            for name in network_traits.changed(module, before):
                self._local.__dict__.clear()  # modules are no longer as they were made
                kind = "buffer" if name in dict(module.named_buffers()) else "frozen parameter"
                raise TaskError(
                    f"The model changes its {kind} '{name}' when it runs, and clients would see one another's data in it. "
                    "Compute it again in every call, or make it a parameter that learns."
                )

    def prepare(self, dtype: torch.dtype, device: torch.device = _CPU) -> nn.Module:
        """The module in a type and on a device, frozen parts and all; to be called outside of any map or derivative, where
        these can be changed."""
        if (dtype, device) not in self._masters:
            self._masters[dtype, device] = network_traits.recast(network_traits.copied(self._master), dtype).to(device)
        return self._masters[dtype, device]

    def module(self, seed: int = 0, params: Params | None = None) -> nn.Module:
        """A fresh module, initialised from the seed or holding the given parameters; the global RNG stays as it was."""
        with _GENERATOR, torch.random.fork_rng(devices=_CPU_RNG):
            torch.manual_seed(seed)
            module = self._made()
        if not isinstance(module, nn.Module):
            raise TaskError(f"The model factory must return an nn.Module; got {type(module).__name__}.")
        network_traits.refuse_unsupported(module)
        if params is not None:
            self.require(params)
            network_traits.filled(module, params)
        return module

    def _made(self) -> nn.Module:
        try:
            return self.model()
        except CoterieError:
            raise
        except Exception as error:
            raise TaskError(f"The model cannot be made: {said(error)}. Correct its settings.") from error

    def init(self, seed: int, dtype: torch.dtype = torch.float32) -> Params:
        """Start parameters and running statistics, a function of the seed alone; frozen parameters (requires_grad=False)
        stay inside the module."""
        self.prepare(dtype)
        module = self.module(seed)
        held = dict(module.named_parameters()) | dict(module.named_buffers())
        params = {n: held[n].detach().to(dtype).clone() for n in module.state_dict() if n in self.names}
        if not self.trainable:
            raise TaskError("The model has no parameters to learn. Add a layer with weights, or unfreeze one.")
        return params

    @cached_property
    def trainable(self) -> frozenset[str]:
        """The parameters that learn; frozen ones stay inside the module."""
        return frozenset(name for name, p in self._master.named_parameters() if p.requires_grad)

    @cached_property
    def names(self) -> frozenset[str]:
        """The entries of a parameter dictionary: what learns, and the running statistics."""
        return self.trainable | self.statistics

    def require(self, params: Params) -> None:
        """Refuse a dictionary without exactly these names: a module would fill the gaps with its own weights."""
        if params.keys() == self.names:
            return
        missing, unknown = sorted(self.names - params.keys()), sorted(params.keys() - self.names)
        raise TaskError(
            f"A parameter dictionary needs exactly the model's trainable names; missing: {', '.join(missing) or 'none'}; "
            f"unknown: {', '.join(unknown) or 'none'}. To train a part, pass the whole dictionary and fit(…, train=names)."
        )

    def network(self, names: tuple[str, ...], sample: torch.Size) -> Network | None:
        """The form of the module with gradients written by hand, for chunks of clients; None where it has no such form, or
        where the library's kernels are faster."""
        if (names, sample) not in self._networks:
            network = Network.of(self._master, names, self.loss, sample)
            heavy = network is not None and network.bytes(sample) > _HEAVY
            self._networks[names, sample] = None if heavy else network
        return self._networks[names, sample]

    def outputs(self, params: Params, x: Tensor) -> Tensor:
        """What the model predicts: no dropout, and normalised with the running statistics."""
        self.require(params)
        by_hand = self._by_hand(params, x)
        if by_hand is not None:
            return by_hand
        with self.watching(torch.zeros((), dtype=torch.int64)):
            result: Tensor = functional_call(self.judge(_first(params)), params, (x,))
        return result

    def _by_hand(self, params: Params, x: Tensor) -> Tensor | None:
        """Outputs of a chunk of clients at once, where the module has that form."""
        network = self.network(tuple(params), x.shape[1:]) if forward_and_back.replaceable(x) else None
        return None if network is None else forward_and_back.outputs(network, x, tuple(params.values()))

    def training_outputs(self, params: Params, x: Tensor, key: Tensor) -> Tensor:
        """The outputs while learning: random numbers come from the key, and BatchNorm uses the samples' own statistics (the
        running ones stay as they are; `LocalSGD` moves them)."""
        return self.training_pass(params, x, key)[0]

    def training_pass(self, params: Params, x: Tensor, key: Tensor) -> tuple[Tensor, Params]:
        """The outputs while learning, and the running statistics after these samples."""
        self.require(params)
        by_hand = self._by_hand(params, x)
        if by_hand is not None:  # such a network does the same in training
            return by_hand, {}
        module = self._mine("skeleton", _first(params).dtype, _first(params).device)
        moved = {name: params[name].detach().clone() for name in self.statistics}
        if moved:
            network_traits.settle(module, len(x))
        with self.watching(key):
            result: Tensor = functional_call(module, params | moved, (x,))
        return result, moved

    def watching(self, key: Tensor) -> AbstractContextManager[Any]:
        """Around a call of the network: what it draws comes from the key."""
        return Drawing(key) if self.traits.watched else nullcontext()

    def sample_losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        function = LOSSES[self.loss] if isinstance(self.loss, str) else self.loss
        losses = function(outputs, y)
        if losses.shape != y.shape[:1] and losses.shape != y.shape:
            raise TaskError(
                f"A loss must give one number per sample, shape {tuple(y.shape[:1])}; got {tuple(losses.shape)}. "
                "Use reduction='none'."
            )
        return losses if losses.dim() == 1 else losses.flatten(1).mean(1)

    def check(self, federation: Federation, *, look: bool = True) -> None:
        """Run some samples through the model, so that errors come before training starts. A private run does not `look` at
        anybody's values: their shape is enough, and an error may not depend on one client's data."""
        x, y, owner = federation.some_rows(_ROWS)
        if not look:
            x, y = _instead_of(x), y.new_zeros(_ROWS, *y.shape[1:])
        params = self.init(0, x.dtype if x.is_floating_point() else torch.float32)
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
        kind = (x.shape[1:], x.dtype, y.shape[1:], y.dtype, look)  # the result may depend on the values of the samples
        if kind not in self._found:
            traits = self._traits(params, x[:_TRIED], y[:_TRIED])
            couples = callable(self.loss) and self._couples(outputs, y if look else _all_classes(y, federation))
            self._found[kind] = replace(traits, alone=traits.alone or couples)
        self._found["last"] = self._found[kind]

    def _tried(self, params: Params, x: Tensor) -> Tensor:
        """Outputs for some samples, and once more as in training. A model is refused that draws from a global generator,
        changes its buffers or parameters, or whose outputs depend on what it saw before."""
        key = torch.zeros((), dtype=torch.int64)
        before = {name: p.clone() for name, p in params.items()}

        def predict(x: Tensor) -> Tensor:
            return _one_tensor(self.outputs(params, x))

        def learn(x: Tensor) -> Tensor:
            return _one_tensor(self.training_outputs(params, x, key))

        with _GENERATOR, torch.random.fork_rng(devices=_CPU_RNG), torch.no_grad(), Drawing(key):
            generators = network_traits.generators()
            try:
                outputs, _ = predict(x), learn(x)
                self.require_same_buffers()
                drawn = network_traits.generators() != generators
                remembers = not drawn and any(self._remembers(run, x) for run in (predict, learn))
            except (RuntimeError, ValueError, IndexError, TypeError, AttributeError) as error:
                if isinstance(error, TaskError):
                    raise
                raise TaskError(
                    f"The model cannot take this federation's samples of shape {tuple(x.shape[1:])}: "
                    f"{str(error).splitlines()[0]}."
                ) from None
        if drawn:
            raise TaskError(
                "The model draws from a global random generator in a way that cannot be made reproducible. "
                "Use torch.rand, torch.bernoulli or nn.Dropout for its draws."
            )
        for name in (n for n, p in params.items() if not torch.equal(p, before[n])):
            raise TaskError(
                f"The model changes its parameter '{name}' when it runs, so predicting would move it. Use a changed copy in "
                "the call instead: F.linear(x, self.weight.clamp(min=0)), say."
            )
        if remembers:
            raise TaskError(
                "The model gives other outputs for the same samples when it has run on others before: it keeps what it saw "
                "in an attribute, or draws its own random numbers. Keep nothing between calls, and draw with torch.rand."
            )
        return outputs

    def _remembers(self, run: Callable[[Tensor], Tensor], x: Tensor) -> bool:
        """Whether a fresh module's outputs depend on what it ran on before."""
        found = []
        for before in (x[:0], x[-_TRIED:].flip(0)):
            self._local.__dict__.clear()
            if len(before):
                run(before)
            found.append(run(x[:_TRIED]))
        self._local.__dict__.clear()  # modules that were used are no longer as they were made
        return not network_traits.close(found[0], found[1], 1e-5)

    def _traits(self, params: Params, x: Tensor, y: Tensor) -> Traits:
        """Traits that only a run shows: whether the model draws, mixes samples, or cannot be batched over clients."""
        if Network.of(self._master, tuple(params), self.loss, x.shape[1:]) is not None:
            return Traits(watched=False, addresses=False)
        key = torch.zeros((), dtype=torch.int64)
        module = self._mine("skeleton", _first(params).dtype)

        def loss(params: Params, x: Tensor, y: Tensor, key: Tensor) -> Tensor:
            return self.sample_losses(self.training_outputs(params, x, key), y).sum() + self.outputs(params, x).sum()

        with torch.no_grad():
            addressing = network_traits.Addresses()  # type: ignore[no-untyped-call]  # torch's
            with addressing, Drawing(key) as drawing:
                functional_call(module, {n: p.clone() for n, p in params.items()}, (x,))
            alone = self._shown_alone or any(
                network_traits.mixes_rows(run, x)
                for run in (lambda x: self.outputs(params, x), lambda x: self.training_outputs(params, x, key))
            )
        batched = alone or self.convolutional or network_traits.batches(loss, params, x, y, key)
        return Traits(watched=drawing.used, alone=alone or not batched, addresses=addressing.used)

    def _couples(self, outputs: Tensor, y: Tensor) -> bool:
        """Whether the loss of a sample depends on other samples (a contrastive loss): padding must not enter it."""
        with torch.no_grad():
            return network_traits.mixes_rows(
                lambda rows: self.sample_losses(outputs[rows], y[rows]), torch.arange(len(y))
            )

    def _check_outputs(self, outputs: Tensor, federation: Federation) -> None:
        width = outputs.shape[-1] if outputs.dim() > 1 else 1
        entries = math.prod(federation.y.shape[1:])
        classes = federation.n_outputs if federation.kind == "classification" else None
        if self.loss == "cross_entropy":
            if classes is None:
                word = (
                    "several labels. Use loss='bce'" if federation.kind == "multilabel" else "numbers. Use loss='mse'"
                )
                raise TaskError(f"cross_entropy needs classes; this federation holds {word}.")
            if width < classes:
                raise TaskError(f"The model has {width} outputs for {classes} classes. Give it one per class.")
            if outputs.shape[:-1] != (len(outputs), *federation.y.shape[1:]):
                raise TaskError(
                    f"A sample has {tuple(federation.y.shape[1:])} labels and the model gives {tuple(outputs.shape[1:])}. "
                    "Give one row of classes per label."
                )
        if self.loss in ("mse", "bce") and outputs.numel() != len(outputs) * entries:
            need = "one output" if entries == 1 else f"{entries} outputs, one per number of a target"
            raise TaskError(
                f"{self.loss} needs a model with {need}; this one has {width}. Use nn.Linear(…, {entries})."
            )
        if self.loss == "bce" and federation.kind != "multilabel" and classes != 2:
            raise TaskError(f"bce needs two classes; this federation has {classes or 'numbers'}. Use cross_entropy.")
        for scorer in self.scorers:
            if scorer.for_numbers is False and federation.kind == "regression":
                raise TaskError(
                    f"The metric {scorer.name} needs classes; this federation holds numbers. Use 'mse' or 'r2'."
                )
            if scorer.for_numbers and outputs.numel() != len(outputs) * entries:
                raise TaskError(f"The metric {scorer.name} needs a model with one output; this one has {width}.")


def _instead_of(x: Tensor) -> Tensor:
    """Samples of the same shape that say nothing of anybody's data, nor how many rows there are; ids are all 0."""
    shape = (_ROWS, *x.shape[1:])
    numbers = torch.cos(torch.arange(math.prod(shape), dtype=torch.float32)).reshape(shape)
    return numbers.to(x.dtype) if x.is_floating_point() else x.new_zeros(shape)


def _all_classes(y: Tensor, federation: Federation) -> Tensor:
    """Labels of the same shape that have every class, in place of a private run's."""
    if federation.kind != "classification":
        return y
    return (torch.arange(y.numel()) % federation.n_outputs).reshape(y.shape).to(y.dtype)


def _one_tensor(outputs: Any) -> Tensor:
    if not isinstance(outputs, Tensor):
        raise TaskError(
            f"A model must return one tensor; this one returns a {type(outputs).__name__}. Return the part that the "
            "loss needs (of nn.LSTM, say, output[0])."
        )
    return outputs


def _first(params: Params) -> Tensor:
    return next(iter(params.values()))
