"""An open vocabulary: the tokens that many users have, found privately, with a receipt of its own.

A table over the tokens that the users happen to have is not public, so `HistogramMixture` gives it no valid receipt. These
tokens may be shown to all; `count_tokens` makes the table over them. Name one ledger in both budgets, and it adds them up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from coterie.base.annotations import guarded
from coterie.base.arguments import Count
from coterie.errors import DataError
from coterie.estimation.histograms.counts import Counts
from coterie.privacy import Line, Receipt, Released, SetUnion
from coterie.privacy.account import Account
from coterie.privacy.settings import Budget

Texts = Sequence[Iterable[str]] | Mapping[str, Iterable[str]]


@dataclass(frozen=True)
class Vocabulary:
    """Tokens found, the receipt, and the noisy weight that a token had to reach (a user adds 1/√most to each of its own)."""

    tokens: Released[list[str]]
    receipt: Receipt
    threshold: float


@guarded
def discover_tokens(texts: Texts, privacy: Budget, *, most: Count = 100, random_state: int = 0) -> Vocabulary:
    """The tokens that enough users have. `texts` has the tokens of every user; a user takes part with `most` different ones,
    drawn at random. Half of δ pays for the noise, and half for the threshold; `privacy.clip` is not used."""
    users = list(texts.values()) if isinstance(texts, Mapping) else list(texts)
    if not users or any(isinstance(text, str) for text in users):
        raise DataError("texts must have the tokens of every user, as lists of words; got none, or a plain text.")
    failure = privacy.delta / 2
    account = Account.open(privacy, [Line("vocabulary", 1.0, failure=failure)], random_state)
    z = account.noise_multiplier("vocabulary")
    mechanism = SetUnion("vocabulary", most, len(users), z, failure, privacy.adjacency)
    found = mechanism(
        (_some(text, most, (random_state, u)) for u, text in enumerate(users)), account.noise, account.book
    )
    account.keep(found)
    receipt = account.closed(len(users), {"tokens per user": "fixed in advance"}, guarantee="central")
    return Vocabulary(found, receipt, mechanism.threshold)


def _some(text: Iterable[str], most: int, key: tuple[int, int]) -> list[str]:
    """At most so many different tokens, drawn by public coins and this user's tokens alone."""
    own = sorted(set(text))
    return own if len(own) <= most else np.random.default_rng(key).choice(own, most, replace=False).tolist()


@guarded
def count_tokens(texts: Texts, tokens: Sequence[str]) -> Counts:
    """Users × tokens counts over a given vocabulary; other tokens are left out."""
    tokens = list(tokens)
    users, place = (
        list(texts.values()) if isinstance(texts, Mapping) else list(texts),
        {t: i for i, t in enumerate(tokens)},
    )
    rows = [Counter(place[t] for t in text if t in place) for text in users]
    data = np.array([n for row in rows for n in row.values()], dtype=np.float64)
    indices = np.array([i for row in rows for i in row], dtype=np.int64)
    found = sp.csr_array((data, indices, np.cumsum([0, *map(len, rows)])), shape=(len(users), len(tokens)))
    found.sort_indices()
    return found
