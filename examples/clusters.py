"""Who should learn together? Forty clients own a few handwritten digits each; some see them upright, others turned.

    python examples/clusters.py

Nobody tells the server that there are four orientations. IFCA without a number of clusters tries several on held-out
training data and keeps the evidence; then everybody's accuracy is compared with training alone and with one model for all.
"""

from __future__ import annotations

import pandas as pd

import coterie as ct


def main(rounds: int = 30) -> None:
    federation = ct.datasets.digits(transform="rotate", clients=40)
    task = ct.Task(ct.models.mlp(64, 32, 10))
    local = ct.LocalSGD(steps=10, lr=0.2, batch_size=None)

    found = ct.fit(ct.IFCA(clusters=None, local=local), federation, task, rounds=rounds)
    alone = found.alone()
    one = ct.fit(ct.FedAvg(local), federation, task, rounds=rounds, alone=alone)
    assert alone is not None

    print("Held-out loss by number of clusters (the smallest that is as good as the best is taken):")
    print(pd.DataFrame(found.about["choice"]).round(3).to_string(index=False))
    accuracy = ct.metrics.cluster_accuracy(found.clusters.to_numpy(), federation.clusters)
    print(f"\nChosen: {found.about['clusters']} clusters; {accuracy:.0%} of the clients are in the right one.\n")

    table = pd.DataFrame(
        {
            "alone": alone.evaluate()["accuracy"],
            "one model for all": one.evaluate()["accuracy"],
            "in groups": found.evaluate()["accuracy"],
        }
    )
    print("Mean accuracy:", ", ".join(f"{name} {value:.3f}" for name, value in table.mean().items()))
    for name in ("one model for all", "in groups"):
        gain = table[name] - table["alone"]
        print(f"With {name}: {(gain > 0).sum()} clients gain, {(gain < 0).sum()} lose; mean gain {gain.mean():+.3f}.")


if __name__ == "__main__":
    main()
