"""What is shown is what was found: directions, signs, counts and leavers, on a comparison written by hand."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from coterie.comparison.result import Comparison
from coterie.evidence.gains import GAINS, LOSES, UNCLEAR
from coterie.evidence.mean_gains import Gain
from coterie.evidence.participation import Participation, Settings
from coterie.evidence.rule import Verdict
from coterie.report.sections import cards, caveats, clients, staying
from coterie.report.terminal import comparison_tables

CLIENTS = pd.Index(["up", "down", "same"], name="client")
METHODS = ["local", "fedavg", "ditto"]


def mean_gain(clients: np.ndarray, error: float) -> Gain:
    """A gain with the given error over rows, clients and splits."""
    mean, m = float(clients.mean()), len(clients)
    return Gain(clients, mean, error, error, mean, error, mean, error, clients * 0 + 1, clients * 0 + 40.0, error, m)


def told(metric: str = "mse", lower: bool = True, extra: int = 0) -> Comparison:
    """fedavg has smaller errors than ditto; `up` gains with it, `down` loses, `same` has a gain that may be chance."""
    clients = CLIENTS.append(pd.Index([f"c{i}" for i in range(extra)], name="client"))
    more = [0.01 * (-1) ** i * (i + 1) for i in range(extra)]
    gains = {"local": [0.0] * len(clients), "fedavg": [3.0, -1.0, 0.5, *more], "ditto": [0.1, 0.1, 0.1, *more]}
    gain = pd.DataFrame.from_dict(gains, orient="index", columns=clients).rename_axis("method")
    marks = pd.DataFrame(UNCLEAR, index=gain.index, columns=clients)
    marks.loc["fedavg", ["up", "down"]] = [GAINS, LOSES]
    over = {name: mean_gain(gain.T[name].to_numpy(), 0.1) for name in ("fedavg", "ditto")}
    comparison = Comparison(
        table=5 - gain if lower else 5 + gain,
        gains=gain,
        errors=gain * 0 + 0.1,
        half_widths=gain * 0 + 0.2,
        intervals=pd.DataFrame({m: gain.T[m].mean() + np.array([-0.2, 0.2]) for m in METHODS}, index=["low", "high"]).T,
        marks=marks,
        metric=metric,
        scores=pd.DataFrame(),
        curves=pd.DataFrame(),
        settings=pd.DataFrame(),
        clusters=pd.DataFrame(0, index=gain.index, columns=clients),
        overview=pd.DataFrame({"samples": 50, "test": 40}, index=clients),
        about={"lower_is_better": lower, "clients": 3, "rows": 150, "seeds": [0], "new_split_each_seed": True},
        results=dict.fromkeys(METHODS, ()),
        judgement=Verdict(
            "together", "clear", ("fedavg",), ("fedavg",), "fedavg", 2.0, 9.0, over, "fedavg", {"constant": 9.0}, 5.0
        ),
        failed={"ifca": "it diverged."},
    )
    comparison.__dict__["_audit"] = None
    return comparison


def terminal(comparison: Comparison, *, colours: bool = False) -> str:
    console = Console(width=100, record=True, file=open("/dev/null", "w"), force_terminal=colours)  # noqa: SIM115
    for part in comparison_tables(comparison):
        console.print(part)
    console.file.close()
    return console.export_text(styles=colours)


def line(text: str, start: str) -> str:
    return next(row for row in text.splitlines() if row.strip().startswith(start))


@pytest.mark.parametrize(("metric", "lower"), [("mse", True), ("accuracy", False)])
def test_the_direction_of_the_metric_is_said(metric: str, lower: bool) -> None:
    right, wrong = ("lower", "higher") if lower else ("higher", "lower")
    for text in (terminal(told(metric, lower)), clients(told(metric, lower))):
        assert f"({right} is better)" in text
        assert f"({wrong} is better)" not in text


def test_the_best_method_has_the_largest_gain_whatever_the_metric() -> None:
    assert told("mse", lower=True).best == "fedavg"
    assert told("accuracy", lower=False).best == "fedavg"


def test_signs_colours_and_counts_are_those_of_the_marks() -> None:
    text = terminal(told(), colours=True)
    green, red = (re.escape(f"\x1b[{code}m") for code in (32, 31))
    assert re.search(rf"{green} *\+3\.000 ▲", line(text, "up"))
    assert re.search(rf"{red} *-1\.000 ▼", line(text, "down"))
    assert "▲" not in line(text, "same")
    assert "▼" not in line(text, "same")
    two = told()
    two.marks.loc["fedavg", "same"] = GAINS
    row = line(terminal(two), "fedavg")
    assert row.split()[-2:] == ["2", "1"]
    low, high = two.bounds("fedavg")
    assert low < 0.8 < high
    assert f"{low:+.3f} … {high:+.3f}" in row


def test_the_ends_of_many_clients_are_the_largest_gains_and_losses() -> None:
    text = terminal(told(extra=40))
    assert "The 10 largest gains and losses with fedavg" in text
    shown = [row.split()[0] for row in text.splitlines() if re.match(r"\s*(c\d+|up|down|same)\s", row)]
    assert shown[0] == "up"
    assert "down" in shown
    assert "c0" not in shown  # of the smallest gains
    assert "c38" in shown


def test_the_page_colours_by_marks_and_counts_them() -> None:
    html = clients(told())
    kinds, signs = {}, {}
    for row in re.findall(r"<tr>(.*?)</tr>", html, re.S)[2:]:  # below the heads and the means
        name, cell = re.search(r"<th[^>]*>(.*?)</th>", row).group(1), re.findall(r"<td.*?</td>", row, re.S)[1]
        kinds[name] = re.search(r'class="(\w*)"', cell.split(">")[0] + ">")
        signs[name] = re.sub(r"<[^>]+>", " ", cell).split()
    assert kinds["up"].group(1) == GAINS
    assert kinds["down"].group(1) == LOSES
    assert kinds["same"] is None
    assert signs == {"up": ["2.000", "▲", "+3.000"], "down": ["6.000", "▼", "-1.000"], "same": ["4.500", "+0.500"]}
    numbers = told()
    numbers.marks.loc["fedavg", "same"] = GAINS
    shown = " ".join(re.sub(r"<[^>]+>", " ", cards(numbers)).split())
    assert "2 measurably gain with fedavg" in shown
    assert "1 measurably lose with fedavg" in shown


def test_leavers_and_failures_are_told() -> None:
    table = pd.DataFrame(
        {"score": 1.0, "alone": 1.0, "gain": [1.0, -1.0, 0.0], "low": [0.5, -1.5, -0.5], "high": [1.5, -0.5, 0.5]},
        index=CLIENTS,
    ).assign(p_worse=[0.0, 1.0, 0.5], rows=40, leaves=[False, True, False])
    comparison = told()
    comparison.__dict__["_audit"] = Participation(table, "mse", "FedAvg", Settings(), (), (), search=print)
    rows = re.findall(r"<tr>(.*?)</tr>", staying(comparison), re.S)
    plain = [re.sub(r"<[^>]+>", " ", row).split() for row in rows[1:]]
    leaves = {words[0]: "yes" in words for words in plain}
    assert leaves == {"up": False, "down": True, "same": False}
    assert "ifca failed: it diverged." in caveats(comparison)
    assert np.isfinite(comparison.bounds("fedavg")).all()
