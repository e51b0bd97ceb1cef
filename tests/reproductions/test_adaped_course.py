"""The course of AdaPeD: a table of looks, and claims that its numbers can break."""

from reproductions.adaped_course import KEPT, SAME, STILL, claims, rows, wide
from reproductions.experiment import Records


def course(personal, common=None, psi=0.5):
    looks = [80, 160, 240, 480]
    found = {"round": looks, "personal": [personal * t / 480 for t in looks]}
    one = found | ({} if common is None else {"common": [common] * 4, "psi": [psi] * 4})
    return {str(seed): one for seed in range(3)}


def held(**other):
    cells = {"Local": course(0.9), "AdaPeD": course(0.8, 0.1), SAME: course(0.8, 0.85)}
    return cells | {KEPT: course(0.85, 0.1, 4.0), STILL: course(0.9, 0.1)} | other


def test_looks_become_columns():
    found = Records("paper", held())
    shown = wide(found).set_index("after")
    assert shown.columns.tolist() == ["80 rounds", "160 rounds", "240 rounds", "480 rounds"]
    assert shown.loc["AdaPeD: own models (%)", "240 rounds"] == "40.0"
    assert shown.loc[f"{KEPT}: ψ", "480 rounds"] == "4.00"
    assert len(rows(found)) == 4 * (1 + 4 * 3)


def test_every_claim_can_fail():
    assert [claim.holds for claim in claims(Records("paper", held()))] == [True] * 4
    done = course(0.8, 0.9)
    done = {seed: one | {"personal": [0.8] * 4} for seed, one in done.items()}
    assert [claim.holds for claim in claims(Records("paper", held(AdaPeD=done)))] == [False, True, False, True]
    good = held() | {SAME: course(0.91, 0.85)}
    assert [claim.holds for claim in claims(Records("paper", good))] == [True, False, True, False]
    assert len(claims(Records("quick", held()))) == 1
