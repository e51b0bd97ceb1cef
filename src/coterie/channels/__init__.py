"""Channels transform what passes between server and clients, and compose: faults, attacks, compression."""

from coterie.channels.base import Channel, Where
from coterie.channels.faults import Dropout

__all__ = ["Channel", "Dropout", "Where"]
