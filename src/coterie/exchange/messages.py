"""The vocabulary between server and clients: Ask, Up, MeanBy, SumBy, Reply, and what a client function sees.

The server side of a round is a generator that yields `Ask`s and receives `Reply`s. The client side is a pure function of
ONE client's tensors, `phase(ctx, **down, **each) -> Up`. An ask with `reduce` is *additive*: the server receives sums over
groups of clients and nothing else, so it can be sharded, securely aggregated or made differentially private. An ask
without `reduce` is *individual*: the server sees every client's reply.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Literal, Protocol, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.base import randomness
from coterie.base.annotations import guarded
from coterie.base.tree import Params, Tree, tree_map
from coterie.errors import ConfigError
from coterie.exchange.server_knowledge import Ints as Ints
from coterie.exchange.server_knowledge import Population as Population
from coterie.exchange.server_knowledge import one_per as one_per
from coterie.exchange.server_knowledge import shown_to as shown_to
from coterie.learning.batched.gradients import Pullback, descend, grad_and_loss, pullback
from coterie.learning.batches import Walk, minibatches
from coterie.learning.body_and_head import features
from coterie.learning.predictors import Predictor
from coterie.learning.task import Task


@dataclass(frozen=True)
class Context:
    """What a client function may use: this one client's data, private state and randomness. Padding is masked."""

    task: Task
    x: Tensor
    y: Tensor
    mask: Tensor  # 1 for a sample (its weight, where samples have weights), 0 for padding
    n: Tensor  # number of samples
    key: Tensor  # random key of (seed, client, round)
    index: Tensor  # the client's position in the federation
    round: int
    initial: Params  # the common start of the run
    state: Tree = field(default_factory=dict)
    training: bool = False  # whether these are training samples: the network then uses dropout and batch statistics
    draws: Any = field(default_factory=dict, repr=False, compare=False)  # how often `fresh` was asked for a purpose

    def outputs(self, params: Params) -> Tensor:
        """The network's outputs: in training mode for a batch (for example with dropout), otherwise in evaluation mode."""
        if self.training:
            return self.task.training_outputs(params, self.x, self.fresh("network"))
        return self.task.outputs(params, self.x)

    def loss(self, params: Params) -> Tensor:
        """Mean loss of a model on this client's samples; in training mode for a batch."""
        losses = self.task.sample_losses(self.outputs(params), self.y)
        return (losses * self.mask).sum() / self.mask.sum().clamp(min=1)

    def features(self, params: Params, part: Sequence[str] = ()) -> Tensor:
        """The inputs of the network's head for each sample, in evaluation mode: (samples, features). `part` names the head,
        such as ["4"]; by default it is the last layer."""
        return features(self.task.judge(next(iter(params.values()))), params, self.x, part)

    def losses(self, models: Params, count: int) -> Tensor:
        """The loss of each of `count` stacked models."""
        return torch.stack([self.loss(tree_map(lambda t, j=j: t[j], models)) for j in range(count)])

    def grad(self, params: Params) -> Params:
        """Gradient of `loss`."""
        return self.grad_and_loss(params)[0]

    def grad_and_loss(self, params: Params) -> tuple[Params, Tensor]:
        """Gradient of `loss` and its value, in the time of the gradient alone."""
        self.task.require(params)
        return grad_and_loss(self.task, params, self.x, self.y, self.mask, self.fresh("network"))

    def descend(self, params: Params, lr: float | Tensor) -> Params:
        """`params − lr·grad(params)`; on a fully connected network the gradient is never stored, so it is the fastest way
        to write a step."""
        self.task.require(params)
        return descend(self.task, params, self.x, self.y, self.mask, self.fresh("network"), lr)

    def pullback(self, params: Params) -> tuple[Tensor, Pullback]:
        """The outputs, and a function from any derivative by the outputs to that by the parameters. For loss terms on
        outputs, such as distillation; all of them share one forward pass."""
        return pullback(self.task, params, self.x, self.fresh("network"))

    def fresh(self, purpose: str) -> Tensor:
        """The random key of the next draw for a purpose: the client's own key for the first draw in a phase, and a separate
        key for each later draw. Keys are reproducible and equal on every engine, because draws are counted."""
        count, _ = self.draws.get((id(self.key), purpose), (0, self.key))
        self.draws[id(self.key), purpose] = (count + 1, self.key)  # the key is held, so that its id stays its own
        return self.key if count == 0 else randomness.fold(self.key, "again", count)

    def rewound(self) -> Context:
        """The same client with its draws counted from the start again, so that it gets the same batches a second time."""
        return replace(self, draws={})

    def minibatch(self, size: int | None, purpose: str = "minibatch") -> Context:
        """The same client with a random sample of its data (None: all of it). The n-th call in a phase gives the n-th
        sample of its purpose, independent of the others."""
        if size is None or size >= self.mask.shape[0]:
            return replace(self, training=True)
        chosen = randomness.permutation(randomness.fold(self.fresh(purpose), purpose), self.mask)[:size]
        mask = self.mask[chosen]
        return replace(
            self, x=self.x[chosen], y=self.y[chosen], mask=mask, n=(mask > 0).sum().to(mask.dtype), training=True
        )

    def batches(
        self, *, steps: int | None = None, epochs: int | None = None, batch_size: int | None = None
    ) -> Iterator[Context]:
        """The same client with one mini-batch after the other, for your own loops: the batches that `LocalSGD` takes.

        `steps` batches or `epochs` passes through fresh permutations; `batch_size=None` is all of the data in every step.
        Each batch has its own random key. With `epochs`, a client with fewer samples than others may get empty
        batches (`n` is 0) at the end: their loss and gradient are 0, and a step that does more than follow the gradient
        must be masked with `torch.where(batch.n > 0, …)`."""
        key = self.fresh("batches")
        parts = minibatches(Walk(steps, epochs, batch_size), self.x, self.y, self.mask, key)
        each = (
            replace(self, x=x, y=y, mask=mask, n=n, key=step_key, training=True) for x, y, mask, n, step_key in parts
        )
        return (batch._unpadded() for batch in each) if self.task.alone else each

    def _unpadded(self) -> Context:
        """The batch without the rows that fill up a last batch, for networks whose samples see one another."""
        n = int(self.n)
        return replace(self, x=self.x[:n], y=self.y[:n], mask=self.mask[:n])

    def uniform(self, purpose: str, count: int) -> Tensor:
        """Uniform numbers in [0, 1) from the client's own stream for a purpose."""
        return randomness.uniform(randomness.fold(self.key, purpose), count, self.mask.dtype)

    def normal(self, purpose: str, count: int) -> Tensor:
        """Standard normal numbers from the client's own stream for a purpose."""
        return randomness.normal(randomness.fold(self.key, purpose), count, self.mask.dtype)


@dataclass(frozen=True)
class Up:
    """What a client function returns. `send` goes to the server, with the client's weight in its group (one weight per group
    where the ask's reduce is soft); `state` stays on the client (None: unchanged); `info` are diagnostics of the simulation,
    averaged into the history (NaN: none from this client)."""

    send: Tree
    weight: Tensor | float = 1.0
    group: Tensor | int = 0
    state: Tree | None = None
    info: dict[str, Tensor] = field(default_factory=dict)


@guarded
@dataclass(frozen=True)
class SumBy:
    """Weighted sums over `groups` groups of clients. A client is in one group, `Up(group=…)`; with `soft` it counts in all
    of them, with one weight per group: `Up(weight=…)` is a tensor of that length then."""

    groups: int = 1
    soft: bool = False


@guarded
@dataclass(frozen=True)
class MeanBy:
    """Weighted means over `groups` groups of clients (zero for an empty group); `soft` as in `SumBy`."""

    groups: int = 1
    soft: bool = False


@dataclass(frozen=True)
class From:
    """The value from which a sent field is measured: the first of these fields of the ask that holds the same tensors.

    A client's contribution to a model is the difference from the model it received. `From("model")` says that the sent model
    is measured from the ask's field `model`. `groups` names a field of `down` or `known` with one row per group; the row of
    the client's group counts."""

    fields: tuple[str, ...]
    groups: str | None = None

    def __init__(self, *fields: str, groups: str | None = None) -> None:
        object.__setattr__(self, "fields", fields)
        object.__setattr__(self, "groups", groups)


ClientFunction = Callable[..., Up]


@dataclass(frozen=True)
class Ask:
    """A question to clients. `down` is the same for all; row i of `each` goes only to `clients[i]`.

    `updates` declares which fields of the answer are a client's contribution, and from which value each is measured (None:
    it is an update by itself, such as a gradient). `auxiliary` declares the other fields. Attacks, clipping and
    privacy act on updates; they refuse an ask with undeclared fields. `known` holds values per group that the server has
    and does not send: privacy measures updates from them where each client gets its own row. For an update by itself whose
    shape is not the model's, `known` holds a tree of that shape under its name, for private rounds in which no client is
    drawn.

    `owner` is the position of the client whose model the ask is about, if it is one client's. `optional` lets the round go
    on when no answer is a finite number; otherwise the run has diverged then (as it has when that is so of all asks of a
    round).

    With `test` the phase is called with the client's test rows too, `phase(ctx, test_ctx, …)`: only for algorithms whose
    user says that quality is to be measured there."""

    phase: ClientFunction
    clients: Ints
    down: Tree = field(default_factory=dict)
    each: Tree = field(default_factory=dict)
    reduce: SumBy | MeanBy | None = None
    updates: Mapping[str, From | None] = field(default_factory=dict)
    auxiliary: tuple[str, ...] = ()
    owner: int | None = None
    optional: bool = False
    test: bool = False
    known: Tree = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the client function."""
        return getattr(self.phase, "__name__", "phase")

    def check_declared(self, send: Tree, who: str) -> None:
        """Refuse answers with undeclared fields; `who` is the part that needs the declaration."""
        unknown = [name for name in send if name not in self.updates and name not in self.auxiliary]
        if unknown:
            raise ConfigError(
                f"{who} acts on clients' updates, and the ask '{self.name}' does not say whether {unknown[0]!r} is one. "
                f"Declare it: Ask(…, updates={{{unknown[0]!r}: From(…)}}) or auxiliary=({unknown[0]!r},)."
            )

    def only(self, keep: npt.NDArray[np.bool_]) -> Ask:
        """The same question to fewer clients."""
        rows = torch.from_numpy(np.flatnonzero(keep))
        each = tree_map(lambda t: t.index_select(0, rows), self.each)
        return replace(self, clients=self.clients[keep], each=each)


@dataclass(frozen=True)
class Reply:
    """The answer. Additive: rows of `values` are groups; individual: rows are `clients`, in the order asked.

    `clients` answered, `lost` were asked and did not answer; every algorithm must work with fewer replies than it asked for.
    `dropped` are the lost clients that sent NaN or infinity, or whose own state became NaN or infinite."""

    clients: Ints
    values: Tree
    weight: Tensor
    count: Tensor
    lost: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    info: dict[str, tuple[float, int]] = field(
        default_factory=dict
    )  # sums of diagnostics and how many clients gave one
    bytes_down: int = 0
    bytes_up: int = 0
    dropped: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    def or_keep(self, name: str, old: Tree) -> Tree:
        """`values[name]` for the groups with an answer, the old rows for the others."""
        if name not in self.values:  # nobody answered at all
            return old
        seen = self.weight > 0

        def choose(new: Tensor, before: Tensor) -> Tensor:
            return torch.where(seen.reshape(-1, *[1] * (new.dim() - 1)), new.to(before.dtype), before)

        merged: Tree = tree_map(choose, self.values[name], old)
        return merged


@dataclass(frozen=True)
class Cohort:
    """The clients that take part in this round."""

    clients: Ints
    round: int
    seed: int

    def key(self, purpose: str) -> Tensor:
        """A random key for the server's own choices in this round."""
        return randomness.fold(randomness.base_key(self.seed), purpose, self.round)


State = TypeVar("State")
Exchange = Generator[Ask, Reply, State]


class Algorithm(Protocol):
    """An algorithm is a frozen dataclass of hyperparameters. `init` makes the server state (a frozen dataclass of
    tensors), `round` advances it by asking clients, `personal` says which model a client uses. `client` makes a client's
    private state at first contact and `cluster` names its group. `predictor` is for algorithms whose clients predict with
    more than a model's weights. `notes` are sentences about a run's end. These four have defaults.

    `private` gives the form whose asks are all additive, for a differentially private run. `asks_per_round` is the number
    of asks per round in which clients send updates; each of them is a release.

    Class attributes tell other parts what they need to know of an algorithm: the `way` in which its clients learn
    ("alone", "together", "shrunk" or "groups"; None: by the groups it finds), whether the server needs `individual` replies,
    so that there is no private form, the only number of clients it works with (`exactly`), if there is one, and what a
    client has that never took part (`newcomers`). `example` gives settings with which it can be tried on a small network."""

    way: ClassVar[Literal["alone", "together", "shrunk", "groups"] | None] = None
    individual: ClassVar[bool] = False
    exactly: ClassVar[int | None] = None
    newcomers: ClassVar[str] = "They are scored with the model that the others made."

    @classmethod
    def example(cls) -> Any:
        """Settings for a trial: the defaults, and two clusters where `fit` would choose their number."""
        open_number = any(f.name == "clusters" and f.default is None for f in fields(cast(Any, cls)))
        return cast(Any, cls)(**{"clusters": 2} if open_number else {})

    def init(self, task: Task, population: Population, seed: int, start: Params) -> Any:
        """The server's state before the first round; `start` is the common start model."""
        ...

    def round(self, state: Any, cohort: Cohort) -> Exchange[Any]:
        """One round of the server: a generator that yields asks, receives replies and returns the next state."""
        ...

    def personal(self, ctx: Context, state: Any) -> Params:
        """The model that a client uses."""
        ...

    def client(self, ctx: Context) -> Tree:
        """A client's private state, made when it is first asked."""
        return {}

    def cluster(self, ctx: Context, state: Any) -> Tensor:
        """The group of the client; 0 without groups."""
        return torch.zeros((), dtype=torch.int64)

    def predictor(self) -> Predictor | None:
        """How a client predicts with its model and its own samples; None when the model alone predicts."""
        return None

    def notes(self, state: Any) -> list[str]:
        """Sentences that a user should know about the end of a run; they are kept in `result.about["notes"]`."""
        return []

    @property
    def carries_statistics(self) -> bool:
        """Whether a model's running statistics (BatchNorm) are kept right: they are entries of the parameter dictionary that
        `local.fit` moves, and no gradient does. An algorithm that averages or keeps whole models may say True."""
        return False

    @property
    def keeps_optimiser(self) -> bool:
        """Whether clients keep their optimiser's state between rounds when `local.keep` says so."""
        return False

    def private(self) -> Any:
        """The same algorithm with additive asks only, if it can do without individual ones."""
        return self

    @property
    def asks_per_round(self) -> int:
        """The number of asks per round in which clients send updates; in a private run each is a release."""
        return 1

    @property
    def reads_clusters(self) -> bool:
        """Whether `init` reads the true groups of clients; a private run shows them to such algorithms alone."""
        return False

    @property
    def helpers(self) -> Mapping[str, Any]:
        """Further objects, by name, whose methods the algorithm uses in asks; a deployed client finds them here."""
        return {}

    def predict(self, ctx: Context, state: Any, x: Tensor) -> Tensor:
        """A client's outputs for new samples."""
        model, more = self.personal(ctx, state), self.predictor()
        return (
            ctx.task.outputs(model, x) if more is None else more.outputs(ctx.task, model, x, (ctx.x, ctx.y, ctx.mask))
        )
