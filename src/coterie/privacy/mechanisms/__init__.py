"""Mechanisms: each returns its value and its event, and books the event before it draws noise."""

from coterie.privacy.mechanisms.lattice import Clipped, Lattice, clip_rows
from coterie.privacy.mechanisms.local import LocalGaussian, Moments, OneBit, rate_moments
from coterie.privacy.mechanisms.noise import ExactNoise, Noise, SimulationNoise, make_noise
from coterie.privacy.mechanisms.power import NoisyPower
from coterie.privacy.mechanisms.quantile import Quantile
from coterie.privacy.mechanisms.sums import GroupSums, JointSum

__all__ = [
    "Clipped",
    "ExactNoise",
    "GroupSums",
    "JointSum",
    "Lattice",
    "LocalGaussian",
    "Moments",
    "Noise",
    "NoisyPower",
    "OneBit",
    "Quantile",
    "SimulationNoise",
    "clip_rows",
    "make_noise",
    "rate_moments",
]
