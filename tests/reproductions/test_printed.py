"""Variants as printed are in reproductions/printed; their former settings say so in one sentence."""

import re
from pathlib import Path

import numpy as np
import pytest

import coterie as ct
from coterie.cli.build import build
from coterie.estimation.quantiser import clipping_radius

ROOT = Path(__file__).parents[2]
COUNTS = np.array([[3, 1, 0], [0, 2, 4], [1, 1, 1], [5, 0, 1]])
FORMER = {
    "AdaPeD mode": lambda: ct.AdaPeD(mode="paper"),
    "AdaPeD clips": lambda: ct.AdaPeD(clips=(2.0, 2.0)),
    "AdaPeD noises": lambda: ct.AdaPeD(noises=(1.0, 1.0)),
    "AdaPeD from a file": lambda: build(ct.AdaPeD, {"mode": "paper"}, "algorithm"),
    "BernoulliRates variance": lambda: ct.BernoulliRates(variance="paper"),
    "BernoulliRates minus_one": lambda: ct.BernoulliRates(minus_one=False),
    "MixtureMeans method": lambda: ct.MixtureMeans(2, method="paper"),
    "DiscretePrior repair": lambda: ct.DiscretePrior(repair="none"),
    "HistogramMixture method": lambda: ct.HistogramMixture(2, method="paper").fit(COUNTS),
    "clipping_radius printed": lambda: clipping_radius(
        clients=9, samples=5, prior_variance=1.0, noise_variance=1.0, printed=True
    ),
}


@pytest.mark.parametrize("name", FORMER)
def test_a_former_setting_says_where_it_went(name):
    with pytest.raises(
        ct.errors.ConfigError, match=r"any more: .* is in reproductions/\S+\.py of the repository\."
    ) as error:
        FORMER[name]()
    home = re.search(r"reproductions/\S+\.py", str(error.value))
    assert (ROOT / home[0]).exists()


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: ct.AdaPeD(mode="corrected"), "mode"),
        (lambda: ct.BernoulliRates(variance="corrected"), "variance"),
        (lambda: ct.MixtureMeans(2, method="em"), "method"),
    ],
)
def test_the_value_that_changes_nothing_still_works_for_one_release(make, name):
    with pytest.warns(ct.errors.CoterieWarning, match=f"has no {name} any more: leave it out"):
        assert not hasattr(make(), name)


def test_no_setting_of_the_package_is_a_failing_variant():
    """The words of the options that moved; Theorem 6 and equation 4.7 of the pricing game work, and stay."""
    stays = {"incentives/pricing/buyers.py", "incentives/pricing/game.py"}
    source = ROOT / "src" / "coterie"
    found = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        if re.search(r'"paper"|"printed"|\bPrinted[A-Z]|mode="paper"', path.read_text("utf-8"))
    }
    assert found - stays == {"base/deprecated.py", "estimation/histograms/mixture.py"}  # sentences about former values
