"""Four hospitals want one model for heart disease. Who gains, who would leave, and who is left when they do?

"On average everybody gains" does not keep a club together: a hospital that does better with a model of its own will leave,
and with it goes what the others hoped to learn from it. So before anybody signs, ask for every hospital: is the shared
model better than the one it could train alone, on its own patients, by more than chance?

What a manager learns here:

1. What each hospital gains over training alone, with an interval: resampling its test patients shows how much of the
   difference could be luck.
2. Who would leave (its whole interval is below zero).
3. Whether the rest would stay: they are trained again without the leavers, until nobody wants to leave.
4. That a small sample hides small losses: one hospital's patients decide little, five random splits decide more.

Run: python examples/participation.py [FOLDER]
"""

import sys
from dataclasses import replace
from pathlib import Path

import coterie as ct
from coterie.participation import audit


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

    several = audit([split(seed) for seed in range(5)])
    print("Five splits, gains in log loss, which also counts how sure a prediction was:\n")
    print(several.table.round(3).to_string())
    print(f"\n{several.explain()}\n")

    coalition = several.coalition()
    print(coalition.history.round(3).to_string())
    print(f"\n{coalition.explain()}")

    picture = out / "participation.png"
    several.plot().figure.savefig(picture, dpi=120)
    print(f"\nFigure: {picture}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
