"""Channels transform what passes between server and clients, and compose: faults and attacks."""

from coterie.exchange.channels.attacks import ATTACKS
from coterie.exchange.channels.base import Channel, Where
from coterie.exchange.channels.faults import Dropout

CHANNELS: dict[str, type[Channel]] = {"dropout": Dropout, **ATTACKS}

__all__ = ["CHANNELS", "Channel", "Dropout", "Where"]
