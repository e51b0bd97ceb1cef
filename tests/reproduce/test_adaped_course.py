"""The course of AdaPeD: a table of looks, and claims that its numbers can break."""

from coterie.reproduce.adaped_course import KEPT, claims, rows, wide
from coterie.reproduce.experiment import Records


def course(personal, common=None, psi=0.5):
    looks = [80, 160, 240, 480]
    found = {"round": looks, "personal": [personal * t / 480 for t in looks]}
    return {"0": found | ({} if common is None else {"common": [common] * 4, "psi": [psi] * 4})}


def test_looks_become_columns():
    found = Records("paper", {"Local": course(0.9), "AdaPeD": course(0.8, 0.1), KEPT: course(0.85, 0.1, 4.0)})
    shown = wide(found).set_index("after")
    assert shown.columns.tolist() == ["80 rounds", "160 rounds", "240 rounds", "480 rounds"]
    assert shown.loc["AdaPeD: own models (%)", "240 rounds"] == "40.0 ± 0.0"
    assert shown.loc[f"{KEPT}: ψ", "480 rounds"] == "4.0 ± 0.0"
    assert len(rows(found)) == 4 * (1 + 3 + 3)


def test_every_claim_can_fail():
    held = {"Local": course(0.9), "AdaPeD": course(0.8, 0.1), KEPT: course(0.85, 0.1, 4.0)}
    assert all(claim.holds for claim in claims(Records("paper", held)))
    learned = claims(Records("paper", held | {"AdaPeD": course(0.8, 0.9)}))
    assert [claim.holds for claim in learned] == [False, True, True]
    better = claims(Records("paper", held | {"AdaPeD": course(0.86, 0.1)}))
    assert [claim.holds for claim in better] == [True, False, True]
    done = course(0.8, 0.1)
    done["0"]["personal"] = [0.8] * 4
    assert [claim.holds for claim in claims(Records("paper", held | {"AdaPeD": done}))] == [True, True, False]
    assert len(claims(Records("quick", held))) == 2
