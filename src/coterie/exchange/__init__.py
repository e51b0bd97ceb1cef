"""What passes between server and clients: the messages, and the channels that transform them.

`from coterie.exchange import …` brings everything that an algorithm is written with, and imports it when first used.
"""

from coterie.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
