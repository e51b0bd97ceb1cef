"""Differential privacy for whole users: mechanisms, accounting, ledger, receipt and audit.

- ``Privacy`` is the budget of a run. ``noise_multiplier``, ``epsilon`` and ``delta`` convert budget to noise and back.
- ``JointSum``, ``GroupSums``, ``LocalGaussian``, ``OneBit``, ``NoisyPower`` and ``Quantile`` release values, each with its
  event for the accountant.
- ``make_plan`` shares a budget among releases. ``Ledger`` books them and refuses to overspend.
- ``write_receipt`` states what was released and what it cost. ``Released`` values carry their history to it.
- ``audit`` tries to refute a claim. ``signal`` warns when the noise would be larger than the signal.

It needs NumPy, SciPy, dp-accounting and OpenDP; the last two are imported when first used.
"""

from coterie.privacy.accounting import Composition, compose, delta, epsilon, noise_multiplier
from coterie.privacy.auditing import Audit, PointClaim, audit
from coterie.privacy.canaries import event_worlds, mechanism_worlds
from coterie.privacy.events import Event
from coterie.privacy.gaussian_dp import mu_of
from coterie.privacy.ledger import BudgetSpent, Ledger, LedgerError, adopt
from coterie.privacy.loudness import Signal, signal
from coterie.privacy.mechanisms import (
    ExactNoise,
    GroupSums,
    JointSum,
    Lattice,
    LocalGaussian,
    Noise,
    NoisyPower,
    OneBit,
    Quantile,
    SimulationNoise,
    clip_rows,
    make_noise,
    rate_moments,
)
from coterie.privacy.plan import Line, Plan, make_plan
from coterie.privacy.receipt import Receipt, write_receipt
from coterie.privacy.settings import Privacy
from coterie.privacy.taint import Booking, Released, combine, non_private, public
from coterie.privacy.texts import budget_text

__all__ = [
    "Audit",
    "Booking",
    "BudgetSpent",
    "Composition",
    "Event",
    "ExactNoise",
    "GroupSums",
    "JointSum",
    "Lattice",
    "Ledger",
    "LedgerError",
    "Line",
    "LocalGaussian",
    "Noise",
    "NoisyPower",
    "OneBit",
    "Plan",
    "PointClaim",
    "Privacy",
    "Quantile",
    "Receipt",
    "Released",
    "Signal",
    "SimulationNoise",
    "adopt",
    "audit",
    "budget_text",
    "clip_rows",
    "combine",
    "compose",
    "delta",
    "epsilon",
    "event_worlds",
    "make_noise",
    "make_plan",
    "mechanism_worlds",
    "mu_of",
    "noise_multiplier",
    "non_private",
    "public",
    "rate_moments",
    "signal",
    "write_receipt",
]
