"""Which worlds each study looks at."""

from reproductions.study.worlds import World

R, C = "regression", "classification"


def null_worlds() -> list[World]:
    """Nothing to learn, or nothing that clients have of their own."""
    return [World(truth, m, kind) for m in (20, 100) for kind in (R, C) for truth in ("noise", "shuffled")]


def power_worlds() -> list[World]:
    """Worlds with an answer, from faint to plain."""
    found = [World("identical", 20, kind, effect=e) for kind in (R, C) for e in (0.05, 0.1, 0.2, 0.35)]
    found += [World("partial", 20, kind, tau=t) for kind in (R, C) for t in (0.1, 0.2, 0.3, 0.4)]
    found += [World("groups", m, kind) for kind in (R, C) for m in (20, 100)]
    return found + [World("partial", 5, kind) for kind in (R, C)] + [World("identical", 5, R)]


def coverage_worlds() -> list[World]:
    """Worlds in which the promised gain is compared with the true one, and marks with true signs."""
    found = [
        World(truth, m, kind)
        for m in (20, 100)
        for kind in (R, C)
        for truth in ("identical", "partial", "unrelated", "mixed")
    ]
    return [*found, World("partial", 20, C, classes=3), World("unrelated", 20, C, classes=3)]


PLANS = {"null": null_worlds, "power": power_worlds, "coverage": coverage_worlds}
