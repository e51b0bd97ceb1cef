"""Sums equal the plain ones bit for bit, whoever is lost and whatever is started again; or they stop with a sentence."""

from __future__ import annotations

from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rehearsal import Rehearsal
from worlds import World, numbers, total

from coterie.errors import ConfigError, EngineError
from coterie.secure.identity import Identity
from coterie.secure.roster import known_sites
from coterie.secure.server import Answer, SecureServer
from coterie.secure.settings import Secure

STEPS = ("keys", "shares", "mask", "open")
FIVE = Secure(5, colluding=0)  # three are enough, so two may be lost
SITES = [f"site {i + 1}" for i in range(5)]


@pytest.mark.parametrize("count", [2, 3, 5, 8, 20])
@pytest.mark.parametrize("length", [0, 1, 100])
def test_the_sum_is_the_plain_sum(count: int, length: int) -> None:
    world = World(Secure(count, colluding=min(1, count - 2)), slots=2)
    for ask in range(5):  # over three set-ups
        given = numbers(world, length, ask)
        found = world.add(ask, "about", given, before=lambda: "paid")
        np.testing.assert_array_equal(found.numbers, total(given))
        assert (set(found.sites), found.paid) == (set(world.sites), "paid")
    assert not world.notes


@given(st.integers(0, 2**32), st.sampled_from([-(2**63), -1, 0, 1, 2**63 - 1]))
@settings(max_examples=20, deadline=None)
def test_integers_are_added_modulo_two_to_the_64(seed: int, edge: int) -> None:
    world = World(Secure(3, colluding=0))
    given = {name: np.array([edge, seed, -seed, 2**62]) for name in world.sites}
    wanted = [(3 * edge), 3 * seed, -3 * seed, 3 * 2**62]
    got = world.add(0, "about", given).numbers.tolist()
    assert [(a - b) % 2**64 for a, b in zip(got, wanted, strict=True)] == [0] * 4


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("names", [two for k in (1, 2) for two in combinations(SITES, k)], ids=" ".join)
def test_any_two_of_five_may_be_lost_in_any_step(step: str, names: tuple[str, ...]) -> None:
    world, lost = World(FIVE), set(names)
    world.lost = {step: lost}
    given = numbers(world)
    out = set() if step == "open" else lost  # whose numbers were there already count
    np.testing.assert_array_equal(world.add(0, "about", given).numbers, total(given, out))
    world.lost = {}
    np.testing.assert_array_equal(world.add(1, "about", given).numbers, total(given))  # they are back


@pytest.mark.parametrize(("first", "then"), list(product(SITES[:2], SITES[:3])))
def test_one_may_be_lost_before_and_one_after_its_numbers_came(first: str, then: str) -> None:
    world = World(FIVE)
    world.lost = {"mask": {first}, "open": {then}}
    given = numbers(world)
    np.testing.assert_array_equal(world.add(0, "about", given).numbers, total(given, {first}))


def test_a_sum_of_some_of_the_sites_asks_nobody_else() -> None:
    world = World(FIVE)
    given = numbers(world)
    there = {"site 1", "site 3", "site 4"}

    def put(orders: dict[str, Any]) -> dict[str, Answer]:
        assert set(orders) == there
        told = {name: world.sites[name].mask(order, 0, "about", given[name]) for name, order in orders.items()}
        return {name: Answer(one["masked"], one["context"], name) for name, one in told.items()}

    found = world.server.add(0, "about", 7, put, among=there)
    np.testing.assert_array_equal(found.numbers, total(given, set(SITES) - there))
    assert {who for who, step, _ in world.seen if step == "open"} == there
    np.testing.assert_array_equal(world.add(1, "about", given).numbers, total(given))
    assert sum(step == "keys" for _, step, _ in world.seen) == 5  # those who were not asked need no new keys
    with pytest.raises(EngineError, match="2 of 5 sites are there for this question, and a secure sum needs 3"):
        world.server.add(2, "about", 7, put, among=["site 1", "site 3"])


@pytest.mark.parametrize("step", STEPS)
def test_fewer_than_the_least_number_stop_the_sum_with_a_sentence(step: str) -> None:
    world = World(FIVE)
    world.lost = {step: set(SITES[:3])}
    with pytest.raises(EngineError, match=r"^2 of 5 sites .* needs 3\. Start again when more are there\.$"):
        world.add(0, "about", numbers(world))
    world.lost = {}
    given = numbers(world)
    np.testing.assert_array_equal(world.add(0, "about", given).numbers, total(given))


def test_answers_that_come_too_late_to_open_open_the_sum_that_was_begun() -> None:
    """Those who helped will not answer the question again; the sum that waits is opened when the others are back."""
    world = World(FIVE)
    given, paid = numbers(world), []
    world.lost = {"mask": {"site 5"}, "open": {"site 1", "site 2"}}
    for _ in range(2):
        with pytest.raises(EngineError, match="helped to open"):
            world.add(3, "about", given, before=lambda: paid.append(1))
    world.lost = {}
    found = world.add(3, "about", numbers(world, seed=9), before=lambda: paid.append(1))
    np.testing.assert_array_equal(found.numbers, total(given, {"site 5"}))
    assert paid == [1]


def test_a_site_that_comes_back_or_comes_late_joins_with_the_next_sum() -> None:
    world = World(FIVE)
    given = numbers(world)
    world.there -= {"site 1", "site 2"}
    assert set(world.add(0, "about", given).sites) == set(SITES[2:])
    world.there |= {"site 1"}
    assert set(world.add(1, "about", given).sites) == set(SITES) - {"site 2"}
    world.there |= {"site 2"}
    assert set(world.add(2, "about", given).sites) == set(SITES)


def test_a_site_that_is_there_and_never_answers_does_not_cost_a_set_up_each_time() -> None:
    world = World(FIVE, slots=50)
    given = numbers(world)
    world.lost = {"mask": {"site 1"}}
    for ask in range(12):
        np.testing.assert_array_equal(world.add(ask, "about", given).numbers, total(given, {"site 1"}))
    assert sum(step == "keys" for _, step, _ in world.seen) == 5 * 4  # before sums 1, 2, 4 and 8


# ---- restarts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_every_site_may_start_again_in_the_middle(step: str, when: str, tmp_path: Path) -> None:
    world = World(FIVE, tmp_path, slots=2)

    def restart(site: str, here: str, message: Any) -> Any:
        if here == step:
            world.restart(site)
        return message

    world.change, world.spoil = (restart, world.spoil) if when == "before" else (world.change, restart)
    for ask in range(3):
        given = numbers(world, seed=ask)
        np.testing.assert_array_equal(world.add(ask, "about", given).numbers, total(given))
    assert not world.notes
    assert len(list((tmp_path / "site 1").glob("setup-*"))) <= 2


@pytest.mark.parametrize("step", STEPS)
def test_the_server_may_start_again_in_the_middle(step: str, tmp_path: Path) -> None:
    """It dies when the third site has answered; the sum that it was opening is opened, any other is begun anew."""
    world = World(FIVE, tmp_path)
    count = [0]

    def die(site: str, here: str, answer: Any) -> Any:
        count[0] += here == step
        if here == step and count[0] == 3:
            raise KeyboardInterrupt
        return answer

    world.spoil = die
    first, again, paid = numbers(world), numbers(world, seed=1), []
    with pytest.raises(KeyboardInterrupt):
        world.add(0, "about", first, before=lambda: paid.append(1))
    world.restart_server()
    found = world.add(0, "about", again, before=lambda: paid.append(1))
    np.testing.assert_array_equal(found.numbers, total(first if step == "open" else again))
    assert paid == [1]


def test_an_opened_sum_is_kept_until_it_is_forgotten(tmp_path: Path) -> None:
    world = World(FIVE, tmp_path)
    given = numbers(world)
    before = world.add(0, "about", given).numbers
    world.restart_server()
    asked = len(world.seen)
    np.testing.assert_array_equal(world.add(0, "about", numbers(world, seed=1)).numbers, before)
    assert len(world.seen) == asked
    world.add(1, "about", given)
    world.server.forget(1)
    with pytest.raises(EngineError, match="0 of 5 sites answered"):
        world.add(0, "about", given)
    assert any("answered a later one" in why for _, why in world.notes)


def test_a_site_that_lost_its_folder_is_left_out_until_the_next_keys(tmp_path: Path) -> None:
    world = World(FIVE, tmp_path)
    given = numbers(world)
    world.add(0, "about", given)
    for file in (tmp_path / "site 2").iterdir():
        file.unlink()
    assert set(world.add(1, "about", given).sites) == set(SITES) - {"site 2"}
    assert set(world.add(2, "about", given).sites) == set(SITES)


def test_what_a_site_keeps_is_for_its_owner_alone(tmp_path: Path) -> None:
    world = World(FIVE, tmp_path)
    world.add(0, "about", numbers(world))
    kept = [*tmp_path.rglob("*")]
    assert len(kept) > 20
    assert not [path for path in kept if path.stat().st_mode & 0o077]


# ---- settings --------------------------------------------------------------------------------------------------------


@given(st.integers(2, 200), st.integers(0, 198))
def test_the_least_number_of_sites_lets_nothing_be_opened_twice(count: int, colluding: int) -> None:
    """Two sets of so many sites share an honest one, with one site fewer they need not; and a sum has two honest sites."""
    if colluding > count - 2:
        with pytest.raises(ConfigError, match="two honest sites"):
            Secure(count, colluding)
        return
    made = Secure(count, colluding)
    assert 2 * made.threshold - count > colluding
    assert 2 * (made.threshold - 1) - count <= colluding
    assert made.honest >= 2
    with pytest.raises(ConfigError, match="opened twice"):
        Secure(count, colluding, least=made.threshold - 1)
    assert Secure(count, colluding, least=count).threshold == count


@pytest.mark.parametrize("sites", [0, 1, 201, -3, True, 2.5, "five", None])
def test_a_number_of_sites_that_cannot_be_is_refused(sites: Any) -> None:
    with pytest.raises(ConfigError):
        Secure(sites)


def test_sites_are_known_by_one_key_and_one_name_each() -> None:
    one, two = Identity.made().public, Identity.made().public
    assert known_sites(Secure([one, f"{two} bern"], colluding=0)) == {one: "site 1", two: "bern"}
    assert known_sites(Secure([f"{one} a", f"{two} a"], colluding=0)) == {one: "a", two: "a (site 2)"}
    with pytest.raises(ConfigError, match="comes twice"):
        known_sites(Secure([f"{one} a", f"{one} b"], colluding=0))
    with pytest.raises(ConfigError, match="public keys"):
        known_sites(Secure(5))


def test_a_server_needs_one_key_per_site() -> None:
    world = Rehearsal(FIVE)
    keys = dict(world.server.sites)
    for wrong in (keys | {"site 1": keys["site 2"]}, keys | {"site 1": Identity.made().public}):
        with pytest.raises(ConfigError.__mro__[1], match="key of its own"):
            SecureServer(world.settings, "run", wrong, world.tell)
