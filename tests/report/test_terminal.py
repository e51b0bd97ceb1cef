"""A comparison fits 80 columns with few clients and many, and shows no number cut or 31 digits long."""

from __future__ import annotations

import re

import numpy as np
import pytest
from rich.console import Console

import coterie as ct
from coterie.base.text import number
from coterie.comparison.compare import compare
from coterie.report.terminal import apart_words, comparison_tables


def printed(clients: int, scale: float, seed: int = 0) -> str:
    rng = np.random.default_rng(seed)
    data = {}
    for i in range(clients):
        x = rng.normal(size=(12, 2))
        y = scale * (2 * (-1) ** i * x.sum(1) + rng.normal(size=12))
        data[f"client with quite a long name, number {i}"] = (x, y)
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    for part in comparison_tables(compare(ct.Federation.from_arrays(data, kind="regression"), seeds=1)):
        console.print(part)
    console.file.close()
    return console.export_text()


@pytest.mark.parametrize(("clients", "scale"), [(4, 1e-4), (30, 1.0), (160, 1e5)])
def test_a_comparison_fits_eighty_columns(clients: int, scale: float) -> None:
    text = printed(clients, scale)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("Recommendation: ")
    assert not re.search(r"[\d+.]…\s|\d{8}", text)  # a name may be cut in its middle, a number not
    shown = [line for line in lines if re.match(" client .*…", line)]
    assert len(shown) >= min(clients, 20)
    if clients > 30:
        assert "The 10 largest gains and losses" in text
    if clients >= 30:
        assert "Groups found" in text


def test_numbers_are_short() -> None:
    for value in (0.0, 1e-12, -1e-5, 0.123456, 99.9999, 12345.678, 2.8e13, -8.6e6, float("nan")):
        assert len(number(value, "+")) <= 9
    assert number(0.0123) == "0.012"
    assert number(2.8e13) == "2.8e+13"


def test_what_tells_groups_apart_is_said_in_words() -> None:
    assert apart_words("month=May", -0.1, 0.3) == "target is higher with month=May by 0.3 sd"
    assert apart_words("price", 0.1, -0.4) == "target rises less with price by 0.4 sd"
    assert apart_words("price", -0.6, 0.1) == "price is lower by 0.6 sd"
    assert apart_words("kind=a", 0.9, 0.0) == "kind=a is more frequent by 0.9 sd"
