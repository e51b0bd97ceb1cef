"""`find` turns a way to train coalitions into groups, their support, and the clients' contributions."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from coterie.errors import ConfigError, DataError
from coterie.evidence.coalitions import contributions as contribution
from coterie.evidence.coalitions.answer import ALONE, MOVES, OPEN, STAYS, Coalitions, how_sure
from coterie.evidence.coalitions.client_tree import cosine_distance, cut_tree
from coterie.evidence.coalitions.search import Bank, Block, Search, Settings, Train
from coterie.evidence.gains import Floats, gains_of

RESAMPLES = 40
Note = Callable[[int, int], None]


def find(
    train: Train,
    alone: Sequence[Floats],
    gradients: Callable[[], Floats] | Floats,
    clients: Sequence[object],
    settings: Settings | None = None,
    *,
    brings: bool = True,
    thorough: bool = False,
    seed: int = 0,
    note: Note | None = None,
) -> Coalitions:
    """Find groups of clients that should learn together, such that nobody would rather leave.

    Parameters
    ----------
    train
        A function that takes a coalition (positions of clients) and returns, for every client, the losses of its rows
        (smaller is better), or None for a client without rows. Each coalition is trained once; coalitions of one client or
        nobody are trained only when ``thorough``.
    alone
        The losses of the same rows when each client trains alone; an empty array for a client without a score.
    gradients
        One row per client: the gradient of its training loss at the model of all; or a function that gives them.
    brings, thorough
        Whether to measure what each client brings: by leave-one-out, or by Shapley values and random halves, which train
        many more coalitions.
    note
        Called before each training with (trained so far, planned at most)."""
    m = len(alone)
    if m < 2 or len(clients) != m:
        raise DataError(f"Coalitions need two clients or more, and a name for each; got {m} and {len(clients)} names.")
    settings = settings or Settings()
    order = sorted(range(m), key=lambda i: str(clients[i]))  # the answer does not depend on the order given
    if order != list(range(m)):
        turned = _turned(train, alone, gradients, clients, order)
        found = find(*turned, settings, brings=brings, thorough=thorough, seed=seed, note=note)
        return replace(found, table=found.table.loc[list(clients)])
    if settings.budget < 1 or settings.nodes < 2:
        raise ConfigError(f"budget must be ≥ 1 and nodes ≥ 2; got {settings.budget} and {settings.nodes}.")
    owner = np.repeat(np.arange(m), [len(a) for a in alone])
    limit = max(settings.budget * m, 2 * settings.nodes)
    calls = [0]

    def counted(block: Block) -> Sequence[Floats | None]:
        if note is not None:
            note(calls[0], limit)
        calls[0] += 1
        return train(block)

    bank = Bank(counted, np.concatenate([np.asarray(a, np.float64) for a in alone]), owner, m, limit)
    everyone = frozenset(range(m))
    bank.losses(everyone)
    distance = cosine_distance(np.asarray(gradients() if callable(gradients) else gradients, np.float64))
    search = Search(bank, settings, cut_tree(distance, settings.nodes), distance)
    blocks = search.run()
    support, agreed, kept = _support(search, blocks, seed)
    seceding = search.seceders(blocks)
    tried = bank.trainings
    given, error, how = np.full(m, np.nan), np.full(m, np.nan), "not asked for"
    bank.limit = 1 << 30
    if thorough:
        given, error, how = contribution.thorough(bank, np.random.default_rng([seed, 1]))
    elif brings:
        (given, error), how = contribution.leave_one_out(bank, blocks), "leave-one-out in the group"
    table = _table(search, blocks, agreed, kept, clients)
    table["brings"], table["brings_se"] = given, error
    named = [tuple(clients[i] for i in sorted(b)) for b in _by_size(blocks) if len(b) > 1]
    mean, se = _mean_gain(table)
    return Coalitions(
        table[["group", "gets", "gets_se", "brings", "brings_se", "verdict", "sure", "rows"]],
        tuple(named),
        mean,
        se,
        support,
        tried,
        limit,
        settings.worth,
        tuple(tuple(clients[i] for i in sorted(b)) for b in seceding),
        how,
        dict(bank.rows),
    )


def _turned(
    train: Train,
    alone: Sequence[Floats],
    gradients: Callable[[], Floats] | Floats,
    clients: Sequence[object],
    order: list[int],
) -> tuple[Train, list[Floats], Callable[[], Floats], list[object]]:
    """The same world with its clients in another order."""

    def trained(block: Block) -> Sequence[Floats | None]:
        parts = train(frozenset(order[i] for i in block))
        return [parts[i] for i in order]

    def sorted_gradients() -> Floats:
        return np.asarray(gradients() if callable(gradients) else gradients)[order]

    return trained, [alone[i] for i in order], sorted_gradients, [clients[i] for i in order]


def _by_size(blocks: list[Block]) -> list[Block]:
    return sorted(blocks, key=lambda b: (-len(b), min(b)))


def _support(search: Search, blocks: list[Block], seed: int) -> tuple[float, Floats, Floats]:
    """(share of resamples with the same groups; share per client with nearly the same group; its gain on rows not drawn).

    Half of every client's rows are drawn, and the search is repeated with them on the coalitions trained before. Rows are
    drawn without replacement: with it, gains would spread more than their errors say, and equal clients would seem to lose.
    The gain of a client comes from draws that put it in nearly the same group, and is measured on the other half of the
    rows."""
    bank, rng = search.bank, np.random.default_rng([seed, 0])
    m, same = bank.n_clients, 0
    agreed, total, count = np.zeros(m), np.zeros(m), np.zeros(m)
    mine = {i: b for b in blocks for i in b}
    kept = bank.alone - search.under(blocks)
    halved = replace(search.settings, fewest=-(-search.settings.fewest // 2))
    for _ in range(RESAMPLES):
        weight = _half(bank.owner, m, rng)
        found = replace(search, settings=halved, weight=weight, frozen=True, _judged={}).run()
        same += set(found) == set(blocks)
        theirs = {i: b for b in found for i in b}
        alike = np.array([len(mine[i] & theirs[i]) > 0.5 * len(mine[i] | theirs[i]) for i in range(m)])
        agreed += alike
        left = gains_of(np.where(weight == 0, kept, np.nan), bank.owner, m)
        use = alike & left.known
        total, count = total + np.where(use, left.mean, 0), count + use
    honest = np.divide(total, count, out=np.full(m, np.nan), where=count > 0)
    return same / RESAMPLES, agreed / RESAMPLES, honest


def _half(owner: np.ndarray, m: int, rng: np.random.Generator) -> Floats:
    """1 for a random half of every client's rows, 0 for the other half."""
    random = rng.random(len(owner))
    order = np.lexsort((random, owner))
    size = np.bincount(owner, minlength=m)
    place = np.empty(len(owner), np.int64)
    place[order] = np.arange(len(owner)) - np.repeat(np.cumsum(size) - size, size)
    return np.asarray((place + rng.integers(2, size=m)[owner]) % 2, np.float64)


def _table(
    search: Search, blocks: list[Block], agreed: Floats, honest: Floats, clients: Sequence[object]
) -> pd.DataFrame:
    """A row per client; the error is that of all its rows, with its variance shrunk towards that of its group."""
    bank, m = search.bank, search.bank.n_clients
    group, verdict = np.full(m, -1), np.full(m, ALONE, dtype=object)
    plain = gains_of(bank.alone - search.under(blocks), bank.owner, m).widened(search.settings.widen)
    for number, block in enumerate(b for b in _by_size(blocks) if len(b) > 1):
        group[sorted(block)] = number
        verdict[sorted(block)] = STAYS if number == 0 else MOVES
    gets = np.where(np.isfinite(honest), honest, plain.mean)
    gets = np.where(group < 0, 0.0, gets)
    gets = np.where(plain.known, gets, np.nan)
    few = plain.rows < search.settings.fewest
    sure = [OPEN if few[i] else how_sure(agreed[i]) for i in range(m)]
    return pd.DataFrame(
        {
            "group": group,
            "gets": gets,
            "gets_se": np.where(plain.known, np.where(group < 0, 0.0, plain.error), np.nan),
            "verdict": verdict,
            "sure": sure,
            "rows": plain.rows.astype(np.int64),
        },
        index=pd.Index(list(clients), name="client"),
    )


def _mean_gain(table: pd.DataFrame) -> tuple[float, float]:
    """The mean gain of the clients in groups, and its error."""
    inside = table[(table["group"] >= 0) & table["gets"].notna()]
    if not len(inside):
        return 0.0, 0.0
    error = inside["gets_se"].replace(np.inf, np.nan)
    error = error.fillna(error.median() if error.notna().any() else 0.0)
    return float(inside["gets"].mean()), float(np.sqrt((error**2).sum()) / len(inside))
