"""One histogram per user: clustering in KL, fine-tuning, a soft mixture, baselines, files of counts."""

from coterie.base.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
