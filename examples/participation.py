"""Four hospitals want one model for heart disease. Who gains, who would leave, and who is left when they do?

"On average everybody gains" does not keep a club together: a hospital that does better with a model of its own will leave,
and with it goes what the others hoped to learn from it. So before anybody signs, ask for every hospital: is the shared
model better than the one it could train alone, on its own patients, by more than chance?

What a manager learns here:

1. What each hospital gains over training alone, with an interval: resampling its test patients shows how much of the
   difference could be luck.
2. Who would leave: everybody whose whole interval is below zero, or, less patient, everybody who sees a loss.
3. Whether the rest would stay: they are trained again without the leavers, until nobody wants to leave.
4. That 60 to 150 test patients prove little: most differences of a single split are within chance.

Run: python examples/participation.py [FOLDER]
"""

import sys
from dataclasses import replace
from pathlib import Path

import coterie as ct
from coterie.training.coalition import audit


def main(out: Path) -> None:
    local = ct.LocalSGD(epochs=1, lr=0.1, batch_size=16)
    data = ct.datasets.heart(seed=0, test_fraction=0.5)
    result = ct.fit(ct.FedAvg(local), data, rounds=30)
    one = result.participation()
    print("One split of the patients, gains in accuracy:\n")
    print(one.table.round(3).to_string())
    print(f"\n{one.explain()}\n")

    def split(seed: int) -> ct.Result:
        """Another random half of the patients to learn from, scored by probabilities instead of right and wrong."""
        federation = ct.datasets.heart(seed=seed, test_fraction=0.5)
        task = replace(ct.Task.default(federation), metric="log_loss")
        return ct.fit(ct.FedAvg(local), federation, task, rounds=30, seed=seed)

    runs = [split(seed) for seed in range(5)]
    several = audit(runs)
    print("Five splits, gains in log loss, which also counts how sure a prediction was:\n")
    print(several.table.round(3).to_string())
    print(f"\n{several.explain()}\n")

    doubt = several.table["p_worse"].idxmax()
    print(
        f"Chance that {doubt} loses: {several.table.loc[doubt, 'p_worse']:.0%}. If hospitals do not wait for proof and"
    )
    print("leave as soon as they see a loss:\n")
    coalition = audit(runs, rule="mean").coalition()
    print(coalition.history.round(3).to_string())
    print(f"\n{coalition.explain()}")

    picture = out / "participation.png"
    several.plot().figure.savefig(picture, dpi=120)
    print(f"\nFigure: {picture}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
