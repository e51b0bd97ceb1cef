"""The users of a private run, who answer questions with whole numbers wherever their rows are; releases are of the sums."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, ClassVar, Protocol

from coterie.estimation.histograms.counts import Counts, Ints, Source, has_public_vocabulary
from coterie.estimation.histograms.user_rows import HistogramRows, Weighting
from coterie.privacy import Released
from coterie.privacy.account import Account
from coterie.privacy.mechanisms.gaussian import GaussianMechanism

_VOCABULARY = (
    "unaccounted: the tokens were read from the users' data or from a file; pass a matrix over a public vocabulary, or "
    "save_counts(folder, blocks, vocabulary=privacy.public([...]))"
)


class Question(Protocol):
    """A dataclass of public values. The answer is of histograms ("user"), or of raw counts ("token")."""

    weighting: ClassVar[Weighting] = "user"

    def whole(self, block: Counts) -> Ints:
        """The sum over the block's users; what one of them adds does not depend on the others, to the last bit."""
        ...


def public_values(question: Any) -> dict[str, Any]:
    """What every user is told; a field that is not compared is only memory."""
    return {f.name: getattr(question, f.name) for f in fields(question) if f.compare}


class Crowd(Protocol):
    """Users who answer questions. ``louder``: by how much the last release's noise exceeds the mechanism's, as it does where
    more sites added noise than had to. ``keeps``: the same blocks come in every round."""

    louder: float

    @property
    def width(self) -> int: ...

    @property
    def users(self) -> int: ...

    @property
    def keeps(self) -> bool: ...

    def release(self, question: Question, mechanism: GaussianMechanism, account: Account) -> Released[Any]:
        """Book, add up, and give out the noisy sum."""
        ...

    def choices(self, **more: str) -> dict[str, str]:
        """For each choice that could depend on data, the release that covers it."""
        ...

    def about(self) -> dict[str, Any]:
        """What the receipt says besides."""
        ...


@dataclass
class Users:
    """Users whose rows are here: user-weighted rows, the same users' raw counts, and whether the vocabulary is public."""

    rows: HistogramRows
    counts: HistogramRows
    width: int
    public_vocabulary: bool
    louder: float = 1.0

    @classmethod
    def view(cls, rows: Callable[[Weighting], HistogramRows], width: int, source: Source) -> Users:
        """Both views of the same users; ``source`` says whether its vocabulary is public."""
        return cls(rows("user"), rows("token"), width, has_public_vocabulary(source))

    @classmethod
    def in_memory(cls, counts: Counts, source: Source, threads: int | None) -> Users:
        return cls.view(partial(HistogramRows.in_memory, counts, threads=threads), counts.shape[1], source)

    @property
    def users(self) -> int:
        return self.rows.users

    @property
    def keeps(self) -> bool:
        return self.rows.keeps

    def release(self, question: Question, mechanism: GaussianMechanism, account: Account) -> Released[Any]:
        rows = self.rows if question.weighting == "user" else self.counts
        total = rows.total(lambda start, stop, block: question.whole(block))
        return mechanism.give_out(total, account.noise, account.book)

    def choices(self, **more: str) -> dict[str, str]:
        words = "public" if self.public_vocabulary else _VOCABULARY
        return {"vocabulary": words, "hyper-parameters": "fixed in advance"} | more

    def about(self) -> dict[str, Any]:
        return {"public": ("the size of the vocabulary",)}
