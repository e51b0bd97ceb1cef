"""What passes between server and clients: the messages, and the channels that transform them.

`from coterie.exchange import …` offers everything that an algorithm needs, and imports it when it is first used.
"""

from coterie.base.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
