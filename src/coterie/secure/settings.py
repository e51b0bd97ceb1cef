"""``Secure``: whose sums are hidden from their server, and how many sites may be missing or dishonest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from coterie.base.annotations import guarded
from coterie.base.arguments import one_of
from coterie.errors import ConfigError

MOST_SITES = 200


@guarded
@dataclass(frozen=True)
class Secure:
    """Sums over sites that the server cannot take apart.

    ``sites`` are the sites' public keys, lines as in OpenSSH's ``.pub`` files, or their number for a rehearsal in one
    process. ``colluding`` sites may tell the server everything they know. A sum has at least ``least`` sites; so many must
    answer. If it is not given, it is the smallest number with which no question can be opened twice, ``(sites + colluding)
    // 2 + 1``; the other sites may be lost at any moment.

    In a run with a privacy budget, ``noise="sites"`` lets every site add its part of the noise, so that the server never
    sees a sum without it; with ``"server"`` the server adds it to the sum of all sites."""

    sites: int | Sequence[str]
    colluding: int = 1
    least: int | None = None
    noise: Annotated[str, one_of("sites", "server")] = "sites"

    def __post_init__(self) -> None:
        if isinstance(self.sites, str):
            raise ConfigError(
                f"sites must be a number, or a list of public keys; got {self.sites[:40]!r}. Write a list."
            )
        if not isinstance(self.sites, int):
            object.__setattr__(self, "sites", tuple(self.sites))
        if not 2 <= self.count <= MOST_SITES:
            raise ConfigError(
                f"Secure sums are for 2 to {MOST_SITES} sites; got {self.count}. Several clients may share one site."
            )
        if not 0 <= self.colluding <= self.count - 2:
            raise ConfigError(
                f"colluding must leave at least two honest sites, since one alone would be seen by the others; got "
                f"{self.colluding} of {self.count} sites. Lower it."
            )
        if self.least is not None and not self.fewest <= self.least <= self.count:
            raise ConfigError(
                f"With {self.count} sites of which {self.colluding} may collude, least must lie in {self.fewest} … "
                f"{self.count}, so that no question can be opened twice; got {self.least}. Choose a number between."
            )

    @property
    def count(self) -> int:
        """How many sites there are."""
        return self.sites if isinstance(self.sites, int) else len(self.sites)

    @property
    def fewest(self) -> int:
        """The smallest number of which any two sets share more than ``colluding`` sites."""
        return (self.count + self.colluding) // 2 + 1

    @property
    def threshold(self) -> int:
        """t: a sum has at least so many sites, and so many open it."""
        return self.fewest if self.least is None else self.least

    @property
    def honest(self) -> int:
        """How many honest sites every sum has at least."""
        return self.threshold - self.colluding

    @property
    def trust(self) -> dict[str, str]:
        """What a receipt says of the server and the sites, where the sites add the noise."""
        sees = f"the server saw only sums over at least {self.threshold} sites"
        noise = f"each sum carries noise for (ε, δ) against a server that colludes with at most {self.colluding} sites"
        trust = f"{sees}; {noise}; sites clip their own clients' updates"
        return {"trust": trust, "who_sees_what": f"{sees}; {noise}"}
