"""The sections of the report page, in its order.

A section is a function of the comparison, and `staying` of the coalition too, when it was looked for. It gathers plain
values; the templates turn them into HTML and escape every one of them. An empty section returns "". Nothing is trained
here."""

from collections.abc import Callable

from markupsafe import Markup

from coterie.report.sections.clients import clients
from coterie.report.sections.data import columns, data
from coterie.report.sections.deploying import deploying
from coterie.report.sections.groups import groups
from coterie.report.sections.privacy import receipt
from coterie.report.sections.settings import caveats, settings
from coterie.report.sections.staying import staying
from coterie.report.sections.summary import cards, head, verdict
from coterie.report.sections.training import traffic, training

SECTIONS: tuple[Callable[..., Markup], ...] = (
    head,
    verdict,
    cards,
    deploying,
    clients,
    groups,
    staying,
    training,
    traffic,
    data,
    columns,
    settings,
    receipt,
    caveats,
)
