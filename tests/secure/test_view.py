"""What a server that reads every message sees of one site: uniform noise, independent of that site's numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2_contingency, chisquare
from worlds import World

from coterie.secure.masks import Refused
from coterie.secure.settings import Secure
from coterie.secure.site import SecureSite
from coterie.secure.store import Store

DRAWS = 100_000
FIVE = Secure(5, colluding=0)


@pytest.fixture
def seeded(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sites' random numbers from a seed, so that these tests do not fail by chance."""

    def begin(seed: int) -> None:
        count = iter(range(10**6))
        monkeypatch.setattr(
            "secrets.token_hex", lambda n: hashlib.sha256(f"{seed} {next(count)}".encode()).hexdigest()[: 2 * n]
        )

    return begin


def seen(world: World, site: str, step: str) -> list[Any]:
    return [answer for who, here, answer in world.seen if (who, here) == (site, step)]


@pytest.mark.parametrize("value", [0, 1, -1, 2**61, -(2**61)])
@pytest.mark.parametrize("lost", [set(), {"site 2"}], ids=["all", "one lost"])
def test_single_messages_are_uniform(value: int, lost: set[str], seeded: Callable[[int], None]) -> None:
    """Chi-square over 10⁵ draws, for each of the eight bytes; also for neighbours, and for differences to another site."""
    seeded(abs(value) % 1000)
    world = World(FIVE)
    world.lost = {"mask": lost}
    given = {name: np.full(DRAWS, value) for name in world.sites}
    world.add(0, "about", given)
    (one,), (two,) = (seen(world, name, "mask") for name in ("site 1", "site 3"))
    mine, theirs = (x["masked"][:-1].view(np.uint64) for x in (one, two))
    for numbers in (mine, mine[1:] - mine[:-1], mine - theirs, mine + theirs):
        for place in range(8):
            cells = np.bincount((numbers >> np.uint64(8 * place)).astype(np.uint8), minlength=256)
            assert chisquare(cells).pvalue > 1e-5


def test_numbers_without_a_mask_are_noticed_by_the_same_test() -> None:
    cells = np.bincount(np.random.default_rng(0).normal(0, 40, DRAWS).astype(np.int64).astype(np.uint8), minlength=256)
    assert chisquare(cells).pvalue < 1e-5


LARGE = 2**60 + 12345


def told_by(world: World, value: int, lost: set[str], count: int) -> dict[str, Any]:
    """What site 1 sends in all steps of one sum, begun anew with its keys; others' numbers are the same every time.
    A lost site masks its numbers too, and they come too late."""
    for name, site in world.sites.items():
        world.sites[name] = SecureSite(site.identity, site.secure, site.run)
    world.restart_server()
    world.server.store = Store()
    found: dict[str, Any] = {}

    def read(who: str, step: str, answer: Any) -> Any:
        if who == "site 1":
            found[step] = answer
        return answer | {"masked": answer["masked"][:1]} if step == "mask" and who in lost else answer

    world.spoil = read
    world.add(0, "about", {name: np.full(count, value if name == "site 1" else 7) for name in world.sites})
    return found


@pytest.mark.parametrize("lost", [set(), {"site 1"}, {"site 2"}], ids=["all", "itself", "another"])
def test_what_the_server_sees_of_a_site_does_not_depend_on_its_numbers(
    lost: set[str], seeded: Callable[[int], None]
) -> None:
    """Two samples, one with zeros and one with large numbers: the masked numbers have one distribution."""
    world, counts = World(FIVE, slots=1), np.zeros((2, 8, 256), np.int64)
    for sample, value in enumerate((0, LARGE)):
        for repeat in range(10):
            seeded(100 * repeat + 50 * sample + len(lost))
            masked = told_by(world, value, lost, 2_000)["mask"]["masked"].view(np.uint64)
            for place in range(8):
                counts[sample, place] += np.bincount((masked >> np.uint64(8 * place)).astype(np.uint8), minlength=256)
    for place in range(8):
        assert chi2_contingency(counts[:, place]).pvalue > 1e-5


def test_nothing_else_that_a_site_sends_depends_on_its_numbers(seeded: Callable[[int], None]) -> None:
    """With the same random numbers all its other messages are equal to the letter."""
    world, found = World(FIVE, slots=1), []
    for value in (0, LARGE):
        seeded(1)
        found.append(told_by(world, value, set(), 20))
    masked = [one.pop("mask") for one in found]
    assert found[0] == found[1]
    assert set(found[0]) == {"keys", "shares", "open"}
    assert masked[0]["context"] == masked[1]["context"]
    np.testing.assert_array_equal(masked[1]["masked"] - masked[0]["masked"], np.append(np.full(20, LARGE), 0))


def test_keys_that_a_copied_folder_uses_twice_still_hide_different_questions(tmp_path: Path) -> None:
    """Masks are bound to the question, so those of one slot for two questions differ; only one question asked twice, with
    other noise, would show a difference. A site that goes on in its own folder refuses both."""
    world = World(FIVE, tmp_path, slots=2)
    given = {name: np.arange(50) for name in world.sites}
    orders: list[Any] = []
    world.change = lambda site, step, message: orders.append(message) or message if site == "site 1" else message  # type: ignore[func-returns-value]
    world.add(0, "about", given)
    order = next(o for o in orders if "members" in o and "slot" in o)
    world.restart("site 1")
    with pytest.raises(Refused, match="used once"):
        world.sites["site 1"].mask(order, 1, "another question", given["site 1"])
    store, old = world.sites["site 1"].store, world.sites["site 1"].store.value("last.json")
    kept = store.value(f"setup-{old['setup']}.json")
    store.keep(f"setup-{old['setup']}.json", kept | {"next": 0})  # the copy
    store.drop("last.json")
    again = world.sites["site 1"].mask(order, 1, "another question", given["site 1"])["masked"]
    first = next(told["masked"] for who, step, told in world.seen if (who, step) == ("site 1", "mask"))
    assert len(np.unique(again - first)) == len(first)  # the numbers are equal, and their masks have nothing in common
