"""The public names of this room, except `coterie.compare`; none of them needs torch."""

from coterie.comparison.exact.decision import Decision as Decision
from coterie.comparison.exact.decision import decide as decide
from coterie.comparison.exact.distinguish import distinguish as distinguish
