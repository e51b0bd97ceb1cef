"""Figures, the command line and the one command for Figures 4.1–4.5."""

import io
import runpy
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from coterie.cli import main
from coterie.incentives import Duopoly, PricingGame, RevenueLedger, Simulation, nash_bargaining, simulate
from coterie.incentives import figures as f

EXAMPLE = Path(__file__).parents[2] / "examples" / "incentives_duopoly.py"
GAME = PricingGame(0.5, 5, 15, 5, 5)


@pytest.fixture(autouse=True)
def _headless() -> Iterator[None]:
    plt.switch_backend("agg")
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def played() -> Simulation:
    return simulate(GAME, ["exp3", "cexp3", "adaptive"], rounds=100, seeds=3)


def test_plots_return_axes_that_show_the_data(played: Simulation) -> None:
    ax = played.plot_utilities()
    assert ax.get_lines()[1].get_ydata()[-1] == pytest.approx(played.seller_utility[1].mean())
    assert ax.get_legend() is not None
    buyer = played.plot_utilities("buyer")
    assert buyer.get_lines()[0].get_ydata()[-1] == pytest.approx(played.buyer_utility[0].mean())
    belief = played.plot_belief()
    assert belief.get_lines()[0].get_ydata()[-1] == 0
    actions = played.plot_actions()
    assert sum(bar.get_width() for bar in actions.patches) == pytest.approx(3)
    assert [label.get_text() for label in actions.get_yticklabels()][-1] == f.LABELS["exp3"]


def test_plots_draw_into_given_axes(played: Simulation) -> None:
    _, axes = plt.subplots(2, 3)
    ledger = RevenueLedger().record(0.2, 0.6).record(0.25, 0.7)
    drawn = [
        played.plot_utilities(ax=axes[0, 0]),
        played.plot_belief(axes[0, 1]),
        played.plot_actions(axes[0, 2]),
        f.plot_revenues(1.0, nash_bargaining(0.1, 0.5), axes[1, 0]),
        f.plot_ledger(ledger, "quality", axes[1, 1]),
    ]
    assert all(a is b and isinstance(a, Axes) for a, b in zip(drawn, axes.flat, strict=False))
    assert drawn[0].get_legend() is None  # a figure with several panels brings its own
    with pytest.raises(ValueError, match="who"):
        played.plot_utilities("both")  # type: ignore[arg-type]


def test_duopoly_figures(tmp_path: Path) -> None:
    f.duopoly_figure(nash_bargaining(0.1, 0.5), Duopoly(0.1, 0.5)).savefig(tmp_path / "a.png")
    figure = runpy.run_path(str(EXAMPLE))["schemes_figure"](rounds=5)
    figure.savefig(tmp_path / "b.png")
    top = figure.axes[4].get_ylim()[1]
    drawn = [y for ax in figure.axes[4:] for line in ax.get_lines() for y in line.get_ydata()]
    assert max(drawn) <= top  # no panel cuts another panel's line


def run(*arguments: str) -> tuple[int, str]:
    told = io.StringIO()
    with redirect_stdout(told), redirect_stderr(told), pytest.raises(SystemExit) as ended:
        main(["incentives", *arguments])
    return int(ended.value.code or 0), told.getvalue()


def test_duopoly_command(tmp_path: Path) -> None:
    out = tmp_path / "d.png"
    code, text = run("duopoly", "--q-low", "0.1", "--q-high", "0.5", "--out", str(out))
    assert code == 0
    assert "0.3685" in text
    assert out.stat().st_size > 1000
    code, text = run("duopoly", "--q-low", "0.5", "--q-high", "0.6", "--out", str(out))
    assert code == 0
    assert "below the low firm's model of today" in text
    assert run("duopoly", "--q-low", "0.5", "--q-high", "0.5", "--out", str(out))[0] == 0


def test_pricing_command(tmp_path: Path) -> None:
    out = tmp_path / "p.svg"
    code, text = run(
        "pricing", "--rounds", "50", "--seeds", "2", "--seller", "pd", "--seller", "adaptive", "--out", str(out)
    )
    assert code == 0
    assert "8.75" in text
    assert "adaptive" in text
    assert "cexp3" not in text
    assert out.read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["duopoly", "--q-low", "0.9"], "swap them"),
        (["duopoly", "--q-low", "abc"], "--q-low"),
        (["duopoly", "--out", "nowhere/d.png"], "nowhere"),
        (["duopoly", "--out", "d.xyz"], "d.xyz"),
        (["pricing", "--mu", "2"], "between 0 and 1"),
        (["pricing", "--seller", "foo"], "Unknown seller"),
        (["pricing", "--rounds", "0"], "at least 1"),
        (["pricing", "--n-buyers", "1"], "n_buyers"),
        (["pricing", "--buyer-cost", "50"], "buyer_cost"),
    ],
)
def test_bad_input_gets_one_sentence_and_exit_code_2(arguments: list[str], words: str) -> None:
    code, text = run(*arguments)
    assert code == 2
    assert words in " ".join(text.replace("│", " ").split())
    assert "Traceback" not in text
