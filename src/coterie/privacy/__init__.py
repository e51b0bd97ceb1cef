"""Differential privacy for users or rows: mechanisms, accounting, ledger, receipt and audit.

- ``Privacy`` is the budget of a run. ``noise_multiplier``, ``epsilon`` and ``delta`` convert budget to noise and back.
- ``JointSum``, ``GroupSums``, ``UnitMoments``, ``LocalGaussian``, ``OneBit``, ``NoisyPower`` and ``Quantile`` release
  values, each with its event for the accountant.
- ``make_plan`` shares a budget among releases. ``Ledger`` books them and refuses to overspend.
- ``write_receipt`` states what was released and what it cost. ``Released`` values carry their history to it.
- ``audit`` tries to refute a claim. ``signal`` warns when the noise would be larger than the signal.

It needs NumPy, SciPy, dp-accounting and OpenDP; the last two are imported when first used.
"""

from coterie.base.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
