"""Categories with many levels: their effects, learned inside folds."""

from dataclasses import replace

import numpy as np
import pandas as pd

import coterie as ct
from coterie.comparison.exact.levels import Blocks, with_effects
from coterie.data.coded_table import make_table
from coterie.data.preprocessing import fit_preprocessing
from coterie.data.table_targets import levels_told_apart

LEVELS, SHOPS = 200, 10


def world(seed: int, rows: int = 3000, spread: float = 1.0) -> pd.DataFrame:
    """Sales of shops: a level and a slope each, an effect per product, and noise with variance 0.25."""
    rng = np.random.default_rng(seed)
    shop, product, price = rng.integers(SHOPS, size=rows), rng.integers(LEVELS, size=rows), rng.normal(size=rows)
    level, slope = rng.normal(size=SHOPS), -1 + 0.4 * rng.normal(size=SHOPS)
    sales = level[shop] + slope[shop] * price + spread * rng.normal(size=LEVELS)[product] + 0.5 * rng.normal(size=rows)
    return pd.DataFrame(
        {"shop": [f"s{i}" for i in shop], "product": [f"p{i}" for i in product], "price": price, "sales": sales}
    )


def coded(frame: pd.DataFrame):  # type: ignore[no-untyped-def]
    """The table with a column of codes for products."""
    codes = pd.factorize(frame["product"], sort=True)[0]
    X = np.column_stack([frame["price"], codes])
    return replace(make_table(X, frame["sales"], frame["shop"], "regression", ["price", "product"]), levels=(LEVELS,))


def test_many_levels_are_told_apart_in_the_deployed_model(tmp_path):
    frame = world(0)
    train, new = frame.iloc[:2400], frame.iloc[2400:]
    found = ct.compare(train, client="shop", target="sales", seeds=1, family="linear")
    error = float(((found.model.predict(new) - new["sales"]) ** 2).mean())
    assert error < 0.33  # noise 0.25; with 50 products and all others as one it is above 0.9
    assert found.table.loc["shrunk"].mean() < 0.35  # the same, as cross-validation sees it

    found.model.save(tmp_path / "model")
    loaded = ct.load_model(tmp_path / "model")
    assert (loaded.predict(new) == found.model.predict(new)).all()
    strange = new.assign(product="never sold")
    assert "never" not in " ".join(map(str, loaded.coding.names))
    assert loaded.coding.unseen_categories(strange) == {"product": len(new)}
    middle = [float(loaded.predict(new.assign(product=p).head(1)).iloc[0]) for p in frame["product"].unique()]
    assert min(middle) < float(loaded.predict(strange.head(1)).iloc[0]) < max(middle)


def test_no_row_meets_its_own_target():
    table = coded(world(1, rows=1200, spread=0.0))
    rng = np.random.default_rng(2)
    found = []
    for _ in range(20):
        noise = replace(table, y=rng.normal(size=len(table.y)))
        levels, inside = with_effects(noise, np.ones(len(noise.y), bool))
        assert levels is not None
        found.append(float(inside[:, -1] @ noise.y))
    assert np.mean(found) < 4 * np.std(found) / np.sqrt(20) + 1e-9  # no correlation with the row's own noise


def test_effects_are_those_of_the_world_and_shrink_to_nothing_in_noise():
    rng = np.random.default_rng(0)
    frame = world(3, rows=20_000)
    levels, _ = with_effects(coded(frame), rng.random(20_000) < 2)
    assert levels is not None
    net = frame["sales"] - frame.groupby("shop")["sales"].transform("mean")
    raw = net.groupby(frame["product"]).mean().sort_index().to_numpy()
    assert np.corrcoef(levels.effects[0, :-1], raw)[0, 1] > 0.95
    assert levels.effects[0, -1] == 0
    flat, _ = with_effects(coded(world(4, rows=20_000, spread=0.0)), np.ones(20_000, bool))
    assert flat is not None
    assert np.abs(flat.effects).max() < 0.05


def test_several_classes_keep_columns_of_the_frequent_values():
    frame = world(7, rows=1000).assign(
        size=lambda f: pd.cut(f["sales"], 3, labels=["low", "middle", "high"]).astype(str)
    )
    assert levels_told_apart(frame, "size", None) == 50
    assert levels_told_apart(frame, "sales", None) == 2000
    assert levels_told_apart(frame, "nothing", None) == 50
    assert levels_told_apart(frame.assign(high=frame["sales"] > 0), "high", None) == 2000


def test_blocks_find_the_level_of_a_row():
    frame = world(5, rows=1000)
    plan = fit_preprocessing(frame, ["product", "price"], np.arange(1000), max_categories=500)
    blocks = Blocks.of(plan)
    assert blocks is not None
    assert blocks.names == ("product",)
    hot = np.zeros((3, len(plan)))
    hot[1, 7], hot[2, 0] = 1.0, 1.0
    assert blocks.coded(hot)[:, -1].tolist() == [-1, 7, 0]
    assert blocks.names_of(plan["column"]) == ("price", "product")
    assert Blocks.of(fit_preprocessing(frame, ["price"], np.arange(1000))) is None


def test_the_estimator_keeps_levels_apart():
    frame = world(6, rows=900)
    model = ct.CoterieRegressor(client="shop", family="linear").fit(frame.drop(columns="sales"), frame["sales"])
    shuffled = frame.assign(product=frame["product"].sample(frac=1, random_state=0).to_numpy())
    assert model.score(frame.drop(columns="sales"), frame["sales"]) > 0.2 + model.score(
        shuffled.drop(columns="sales"), frame["sales"]
    )
