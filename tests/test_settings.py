"""One setting is found and replaced wherever it is: in an algorithm, or in the one it wraps."""

import coterie as ct
from coterie.settings import setting, with_setting

FAST = ct.LocalSGD(steps=3, lr=0.2)


def test_a_setting_is_found_and_replaced_in_the_algorithm_itself() -> None:
    changed = with_setting(ct.FedAvg(server_lr=0.5), "local", FAST)
    assert changed == ct.FedAvg(local=FAST, server_lr=0.5)
    assert setting(changed, "local") == FAST


def test_a_setting_is_found_and_replaced_inside_a_base() -> None:
    tuned = ct.FineTuned(ct.FineTuned(ct.IFCA(local=FAST)), tune=FAST)
    changed = with_setting(tuned, "clusters", 3)
    assert changed == ct.FineTuned(ct.FineTuned(ct.IFCA(3, local=FAST)), tune=FAST)
    assert setting(changed, "clusters") == 3
    assert setting(tuned, "clusters", 0) is None  # it has the setting, and the setting is None


def test_a_setting_that_nobody_has_is_neither_found_nor_replaced() -> None:
    for owner in (ct.FedAvg(), ct.FineTuned(), ct.FedAvg, object()):
        assert setting(owner, "clusters", 0) == 0
        assert with_setting(owner, "clusters", 3) is None


def test_a_property_is_not_a_setting() -> None:
    assert ct.MyopicClustering(2).local.steps == 1
    assert setting(ct.MyopicClustering(2), "local") is None
