"""Figures 1–4 of Ozkara et al.: the printed noises, and what the claims say of given numbers."""

import math

import pytest

from reproductions import private_adaped, private_fedem, private_means
from reproductions.claims import PAPER_IS_WRONG
from reproductions.experiment import Records


def seeds(one):
    return {str(seed): one for seed in range(3)}


@pytest.mark.parametrize(("noise", "epsilon"), [(2, 9.105), (4, 3.950), (8, 1.782)])
def test_theorem_7_as_read(noise, epsilon):
    """K = 22 of m = 66, 240 rounds, δ = 1e-4: one derivative of noise σ is two of noise √2·σ."""
    assert private_adaped.both_epsilons(noise * math.sqrt(2), 240, 22, 66)[0] == pytest.approx(epsilon, rel=2e-3)
    assert private_adaped.printed_noise(epsilon, 240, 22, 66) == pytest.approx(noise * math.sqrt(2), rel=2e-3)


def test_the_printed_noise_buys_much_less_than_it_says():
    assert private_adaped.bought(2.0, 240, 22, 66) > 15


def test_claims_of_figures_1_and_2():
    def found(corrected, psi):
        made = {name: seeds({"accuracy": 0.5, "psi": psi}) for name in private_adaped.cells("quick")}
        made["corrected, ε = 2"] = seeds({"accuracy": corrected, "psi": psi})
        return private_adaped.claims(Records("quick", made))

    better, worse = found(0.6, [4.0, 1.0, 3.5]), found(0.4, [4.0, 3.5, 3.0])
    assert [claim.holds for claim in better] == [True, False, True, True, False]
    assert [claim.mark for claim in better][4] == PAPER_IS_WRONG
    assert [claim.holds for claim in worse] == [False, True, False, True, False]
    assert not found(0.6, [4.0, 3.0, 3.5])[2].holds  # noise on ψ itself moves it as far
    assert "times the clip" in worse[0].unlike


def test_claims_of_figure_3():
    made = {name: seeds({"accuracy": 0.9}) for name in private_fedem.cells("quick")}
    assert not private_fedem.claims(Records("quick", made))[0].holds
    made |= {f"FedEM, ε = {e:g}": seeds({"accuracy": 0.3}) for e in (5, 25)}
    assert all(claim.holds for claim in private_fedem.claims(Records("quick", made)))
    assert private_fedem.rows(Records("quick", made))[1].paper == 99.04


def test_the_closed_form_of_figure_4():
    """Theorem 2 with the printed radius, δ = 1e-4, in hundredths."""
    assert [round(private_means.theory(e), 3) for e in (0.1, 0.2, 0.4, 0.8)] == [1.636, 1.554, 1.326, 0.979]
