"""The page says what to deploy, what new clients would get, and what to type next."""

import numpy as np
import pandas as pd

import coterie as ct
from coterie.report.page import page


def test_the_page_names_the_table_and_says_what_to_deploy() -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"shop": np.repeat(np.arange(8), 12), "price": rng.normal(size=96)})
    table["size"] = rng.normal(size=8)[table["shop"]]
    table["sales"] = table["price"] + table["size"] + 0.3 * rng.normal(size=96)
    found = ct.compare(table, client="shop", target="sales", family="linear", seeds=1)
    text = page(found)
    assert "Sales for every shop." in text
    assert found.deploy.words() in text
    assert "measured on clients that were left out" in text
    assert "They are placed by size" in text
    assert "coterie predict model NEW.csv --out predictions.csv" in text
    assert ">overall average<" in text
