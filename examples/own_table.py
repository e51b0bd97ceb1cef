"""Your own table: who gains by learning together?

Here the table is made up: ten shops sell ice cream. In the eight by the sea warm days sell more; in the two in the
mountains cold days do (people come to ski). Each shop learns from only 30 days with many columns (the other days are for
testing), so the sea shops should pool what they know, and the mountain shops should not join them. The command line does
the same for a CSV file:

    coterie compare shops.csv --client shop --target sold_out --out report
"""

import numpy as np
import pandas as pd

import coterie as ct

DAYS, OTHER_COLUMNS = 300, 20

rng = np.random.default_rng(0)
rows = []
for number in range(10):
    mountain = number >= 8
    frame = pd.DataFrame({"temperature": rng.normal(18, 7, DAYS), "rain": rng.random(DAYS)})
    for i in range(OTHER_COLUMNS):
        frame[f"advert {i + 1}"] = rng.normal(size=DAYS)
    demand = (-1 if mountain else 1) * (frame["temperature"] - 18) / 7 - 2 * (frame["rain"] - 0.5)
    demand += 0.5 * frame[["advert 1", "advert 2", "advert 3", "advert 4"]].sum(axis=1)
    frame["sold_out"] = rng.random(DAYS) < 1 / (1 + np.exp(-2 * demand))
    rows.append(frame.assign(shop=f"{'mountain' if mountain else 'sea'} {number + 1}"))
table = pd.concat(rows, ignore_index=True)

comparison = ct.compare(
    lambda seed: ct.Federation.from_frame(table, client="shop", target="sold_out", test_fraction=0.9, seed=seed),
    seeds=1,
)
print(comparison.table.T.round(3))
print(comparison.marks.T)
print(comparison.verdict())
