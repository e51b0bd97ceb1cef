"""The attack channels under a short name: `ct.fit(…, channels=[ct.attacks.SignFlip(clients=[…])])`."""

from coterie.channels.attacks import (
    ALIE,
    ATTACKS,
    Attack,
    EdgeAttack,
    GaussianNoise,
    InnerProduct,
    LabelFlip,
    LargeGradient,
    SignFlip,
)

__all__ = [
    "ALIE",
    "ATTACKS",
    "Attack",
    "EdgeAttack",
    "GaussianNoise",
    "InnerProduct",
    "LabelFlip",
    "LargeGradient",
    "SignFlip",
]
