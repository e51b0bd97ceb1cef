"""Servers and sites that do not follow the protocol: what they try is noticed, or tells them nothing."""

from __future__ import annotations

import copy
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import World, numbers, total

from coterie.errors import CoterieError, EngineError
from coterie.secure import shamir
from coterie.secure.identity import Identity
from coterie.secure.masks import Refused, add_pairs, derived, expanded, public_half
from coterie.secure.roster import Roster, signed
from coterie.secure.secret import Secrets
from coterie.secure.settings import Secure
from coterie.secure.site import SecureSite

FIVE = Secure(5, colluding=0)  # three are enough
ONE_COLLUDES = Secure(5, colluding=1)  # four are needed


def begun(world: World, setup: str = "s", slots: int = 3) -> list[dict[str, Any]]:
    """The bundles of all sites, in order."""
    got = [site.answer({"step": "keys", "setup": setup, "slots": slots}) for site in world.sites.values()]
    return sorted(got, key=lambda one: str(one["bundle"]["key"]))


def dealt(world: World, setup: str = "s", slots: int = 3) -> tuple[list[SecureSite], list[dict[str, Any]]]:
    """All sites in the order of the list, and the order for each."""
    bundles = begun(world, setup, slots)
    by_key = {site.identity.public: site for site in world.sites.values()}
    sites = [by_key[one["bundle"]["key"]] for one in bundles]
    told = [site.answer({"step": "shares", "setup": setup, "bundles": bundles}) for site in sites]
    orders = []
    for i in range(len(sites)):
        boxes = {str(j): one["boxes"][str(i)] for j, one in enumerate(told) if j != i}
        shown = {"signatures": {str(j): one["signature"] for j, one in enumerate(told)}, "boxes": boxes}
        orders.append({"setup": setup, "slot": 0, "members": list(range(len(sites))), "dealt": shown})
    return sites, orders


X = np.arange(6)


# ---- keys and the list of members ------------------------------------------------------------------------------------


def _replaced(bundles: list[dict[str, Any]], world: World) -> list[dict[str, Any]]:
    """Site 1's keys are the server's own, which signs them as well as it can."""
    changed = copy.deepcopy(bundles)
    changed[1]["bundle"]["masking"] = [public_half(X25519PrivateKey.generate()) for _ in range(3)]
    changed[1]["signature"] = signed(Identity.made(), "keys", changed[1]["bundle"])
    return changed


def _own_key(bundles: list[dict[str, Any]], world: World) -> list[dict[str, Any]]:
    """A member that the server made up."""
    mine, changed = Identity.made(), copy.deepcopy(bundles)
    changed[1]["bundle"]["key"] = mine.public
    changed[1]["signature"] = signed(mine, "keys", changed[1]["bundle"])
    return sorted(changed, key=lambda one: str(one["bundle"]["key"]))


def _old(bundles: list[dict[str, Any]], world: World) -> list[dict[str, Any]]:
    """Keys that the site signed for another set-up."""
    return [bundles[0], begun(world, "older")[1], *bundles[2:]]


def _changed(**fields: Any) -> Any:
    def change(bundles: list[dict[str, Any]], world: World) -> list[dict[str, Any]]:
        changed = copy.deepcopy(bundles)
        changed[1]["bundle"] |= fields
        return changed

    return change


LISTS: dict[str, tuple[Any, str]] = {
    "a replaced key": (_replaced, "do not carry its signature"),
    "a member that nobody knows": (_own_key, "not among the run's sites"),
    "keys of another set-up": (_old, "another run or set-up"),
    "a duplicate": (lambda b, w: [b[0], *b[:1], *b[2:]], "a site twice"),
    "another order": (lambda b, w: b[::-1], "not in order"),
    "too few": (lambda b, w: b[:2], "A sum has 3 to 5 sites"),
    "too many": (lambda b, w: [*b, b[0]], "A sum has 3 to 5 sites"),
    "no list": (lambda b, w: {"0": b[0]}, "A sum has 3 to 5 sites"),
    "another run": (_changed(run="other"), "another run or set-up"),
    "another version": (_changed(version=2), "speaks version 2"),
    "other terms": (_changed(terms=[5, 0, 2]), "another number of sites, of colluding or of the least"),
    "no keys": (_changed(masking=[]), "are not keys"),
    "half a key": (_changed(sealing="ab"), "are not keys"),
    "one more field": (_changed(more=1), "of another version"),
}


@pytest.mark.parametrize("kind", LISTS)
def test_a_list_of_members_that_is_not_what_they_signed_is_refused(kind: str) -> None:
    change, why = LISTS[kind]
    world = World(FIVE)
    bundles = begun(world)
    for site in list(world.sites.values())[:1]:
        with pytest.raises(Refused, match=why):
            site.answer({"step": "shares", "setup": "s", "bundles": change(bundles, world)})


def test_a_site_signs_no_list_without_its_own_keys() -> None:
    world = World(FIVE)
    bundles = begun(world)
    site = next(s for s in world.sites.values() if s.identity.public == bundles[0]["bundle"]["key"])
    with pytest.raises(Refused, match="leaves this site out"):
        site.answer({"step": "shares", "setup": "s", "bundles": bundles[1:]})
    other = SecureSite(site.identity, site.secure, site.run)  # another memory, for example an old copy
    other.answer({"step": "keys", "setup": "s", "slots": 3})
    with pytest.raises(Refused, match="shows other keys of it"):
        other.answer({"step": "shares", "setup": "s", "bundles": bundles})


def test_two_halves_with_two_lists_never_answer() -> None:
    """Each half accepts its list, but the members it shares with the other half sign one list only."""
    world = World(FIVE)
    bundles = begun(world)
    by_key = {site.identity.public: site for site in world.sites.values()}
    sites = [by_key[one["bundle"]["key"]] for one in bundles]
    one, two = bundles[:3], bundles[2:]
    first = [site.answer({"step": "shares", "setup": "s", "bundles": one}) for site in sites[:3]]
    second = [site.answer({"step": "shares", "setup": "s", "bundles": two}) for site in sites[3:]]
    with pytest.raises(Refused, match="another list of members"):
        sites[2].answer({"step": "shares", "setup": "s", "bundles": two})
    signatures = {"0": first[2]["signature"], "1": second[0]["signature"], "2": second[1]["signature"]}
    boxes = {"0": first[2]["boxes"]["0"], "2": second[1]["boxes"]["1"]}
    order = {"setup": "s", "slot": 0, "members": [0, 1, 2], "dealt": {"signatures": signatures, "boxes": boxes}}
    with pytest.raises(Refused, match="has not signed this list"):
        sites[3].mask(order, 0, "about", X)


@pytest.mark.parametrize("part", ["boxes", "signatures"])
def test_boxes_and_signatures_of_others_are_refused(part: str) -> None:
    world = World(FIVE)
    sites, orders = dealt(world)
    for wrong in ("", "AAAA", orders[1]["dealt"][part]["3"], None, 5, orders[0]["dealt"][part]["3"][:-8]):
        order = copy.deepcopy(orders[0])
        order["dealt"][part]["2"] = wrong
        with pytest.raises(Refused, match=r"has not signed this list|box"):
            sites[0].mask(order, 0, "about", X)
    sites[0].mask(orders[0], 0, "about", X)


# ---- one question, one sum -------------------------------------------------------------------------------------------


def opening(order: dict[str, Any], answered: list[int]) -> dict[str, Any]:
    return {"step": "open", "setup": order["setup"], "slot": order["slot"], "answered": answered}


def test_keys_are_used_once_and_a_question_is_opened_once() -> None:
    sites, orders = dealt(World(FIVE))
    site, order = sites[0], orders[0]
    site.mask(order | {"slot": 1}, 5, "about", X)
    for slot in (0, 1):
        with pytest.raises(Refused, match="used once"):
            site.mask(order | {"slot": slot}, 6, "about", X)
    site.answer(opening(order | {"slot": 1}, [0, 1, 2, 3, 4]))
    for ask in (0, 4, 5):
        with pytest.raises(Refused, match="helped to open the sum of this question, or answered a later one"):
            site.mask(order | {"slot": 2}, ask, "about", X)
    with pytest.raises(Refused, match="opened once"):
        site.answer(opening(order | {"slot": 1}, [0, 1, 2]))
    assert site.answer(opening(order | {"slot": 1}, [0, 1, 2, 3, 4]))  # the same again
    site.mask(order | {"slot": 2}, 6, "about", X)


def test_a_newer_attempt_ends_the_older_one() -> None:
    sites, orders = dealt(World(FIVE))
    sites[0].mask(orders[0], 5, "about", X)
    sites[0].mask(orders[0] | {"slot": 1}, 5, "about", X)
    with pytest.raises(Refused, match="answered last"):
        sites[0].answer(opening(orders[0], [0, 1, 2]))


@pytest.mark.parametrize("secure", [FIVE, ONE_COLLUDES, Secure(4, colluding=2), Secure(7, colluding=2)])
def test_no_two_attempts_at_one_question_are_both_opened(secure: Secure) -> None:
    """Whatever honest sites are told, each helps with one attempt; colluding sites help with both. Counted for every way to
    split them, with what a site really does."""
    sites, orders = dealt(World(secure))
    honest, everyone = range(secure.colluding, secure.count), list(range(secure.count))
    helped: dict[int, set[str]] = {}
    for i in honest:
        site, order = sites[i], orders[i]
        helped[i] = set()
        for attempt, slot in (("one", 0), ("two", 1)):
            try:
                site.mask(order | {"slot": slot}, 5, "about", X)
                if (i % 2 == 0) == (attempt == "one"):  # half of them are asked to open the first
                    site.answer(opening(order | {"slot": slot}, everyone))
                    helped[i].add(attempt)
            except Refused:
                pass
    assert all(len(attempts) == 1 for attempts in helped.values())
    for split in product(("one", "two"), repeat=len(honest)):  # any other split is no better
        shares = [split.count(attempt) + secure.colluding for attempt in ("one", "two")]
        assert min(shares) < secure.threshold


@pytest.mark.parametrize("secure", [FIVE, ONE_COLLUDES, Secure(4, colluding=2)])
def test_two_versions_of_who_answered_give_no_member_away(secure: Secure) -> None:
    """The server says to some that a member answered, and to others that it did not. Both secrets together would show that
    member's numbers."""
    world = World(secure)
    victim, t, c = secure.count - 1, secure.threshold, secure.colluding
    everyone = list(range(secure.count))
    without = everyone[:-1] if len(everyone) - 1 >= t else everyone
    for ask, liars in enumerate(combinations(everyone[c:], (secure.count - c) // 2)):
        sites, orders = dealt(world, f"s{ask}", 1)
        gives = {"own": c, "masking": c}
        for i in everyone[c:]:
            sites[i].mask(orders[i], ask, "about", X)
            told = without if i in liars else everyone
            sites[i].answer(opening(orders[i], told))
            if without != everyone:
                with pytest.raises(Refused, match="opened once"):
                    sites[i].answer(opening(orders[i], everyone if told == without else without))
            gives["own" if victim in told else "masking"] += 1
        assert min(gives.values()) < t


@pytest.mark.parametrize(
    ("answered", "why"),
    [
        ([0, 1], "needs 3"), ([], "needs 3"), ([0, 0, 1, 2], "each once"), ([2, 1, 0], "each once"),
        ([0, 1, 2, 9], "names others"), ([-1, 0, 1], "names others"), ([0.0, 1, 2], "names others"), ("012", "names"),
        (None, "names"), ([True, 1, 2], "names"),
    ],
)  # fmt: skip
def test_a_sum_of_too_few_or_of_others_is_not_opened(answered: Any, why: str) -> None:
    sites, orders = dealt(World(FIVE))
    sites[0].mask(orders[0], 0, "about", X)
    with pytest.raises(Refused, match=why):
        sites[0].answer(opening(orders[0], answered))


@pytest.mark.parametrize("members", [[0, 1], [1, 2, 3], [0, 1, 2, 7], None, [0, 1, 1, 2], ["0", "1", "2"]])
def test_a_question_to_too_few_or_to_others_is_not_answered(members: Any) -> None:
    sites, orders = dealt(World(FIVE))
    with pytest.raises(Refused):
        sites[0].mask(orders[0] | {"members": members}, 0, "about", X)


def test_sites_that_are_told_different_members_hide_their_numbers_from_one_another() -> None:
    """Their masks do not cancel: even with all secrets that it may ask for, the server's sum is no sum of any sites."""
    secure = Secure(6, colluding=0, least=4)
    sites, orders = dealt(World(secure))
    given = {i: np.full(50, 10**6 * (i + 1)) for i in range(6)}
    views = {i: [0, 1, 2, 3, 4] if i < 3 else [0, 1, 2, 3, 4, 5] for i in range(6)}
    masked = {}
    for i in range(5):
        masked[i] = sites[i].mask(orders[i] | {"members": views[i]}, 0, "about", given[i])
    assert len({one["context"] for one in masked.values()}) == 2
    answered = [0, 1, 2, 3, 4]
    shares = {i: sites[i].answer(opening(orders[i], answered))["shares"] for i in answered}
    found = np.sum([one["masked"].view(np.uint64) for one in masked.values()], axis=0, dtype=np.uint64)
    weight = shamir.weights(answered[:4])
    for m in answered:
        secret = shamir.joined({i: int(shares[i][str(m)], 16) for i in answered[:4]}, weight).to_bytes(32)
        found -= expanded(derived(secret, masked[m]["context"], "own"), 51)
    for group in (s for k in range(1, 6) for s in combinations(answered, k)):
        assert (found[:-1].view(np.int64) != sum(given[i] for i in group)).all()


def test_a_late_message_stays_closed_when_its_sender_was_given_up() -> None:
    """The others gave shares of its key, so its masks shared with others are known; its own mask is not."""
    world = World(FIVE)
    held: dict[str, Any] = {}
    given = numbers(world, 100)

    def late(site: str, step: str, answer: Any) -> Any:
        if (site, step) == ("site 2", "mask"):
            held.update(copy.deepcopy(answer))
            answer["masked"] = answer["masked"][:3]  # what the server has got in time
        return answer

    world.spoil = late
    found = world.add(0, "about", given)
    np.testing.assert_array_equal(found.numbers, total(given, {"site 2"}))
    state = world.server.store.value("sum-0.json")
    assert state["bundles"] is None
    site = world.sites["site 2"]
    setup = next(n for n in site.store.names() if n.startswith("setup-"))
    own = Secrets(bytes.fromhex(site.store.value(setup)["root"]))
    roster = Roster.of(site.store.value(setup.replace("setup", "members")))
    me = roster.keys.index(site.identity.public)
    rest = -held["masked"].view(np.uint64)  # without the masks that the server can compute now
    add_pairs(rest, own.masking(0), me, {i: k for i, k in roster.masking(0).items() if i != me}, held["context"])
    left = (-rest).view(np.int64)[:-1] - given["site 2"]
    np.testing.assert_array_equal(
        left.view(np.uint64), expanded(derived(own.text("own", 0), held["context"], "own"), 100)
    )
    helped = state["answered"]
    with pytest.raises(Refused, match="opened once"):
        world.sites["site 1"].answer(
            {"step": "open", "setup": state["setup"], "slot": 0, "answered": sorted({*helped, me})}
        )


# ---- sites that do not follow the protocol ---------------------------------------------------------------------------


def lies(site: str, step: str, change: Any) -> Any:
    """``change`` for one site's answers in one step."""
    return lambda who, here, answer: change(copy.deepcopy(answer)) if (who, here) == (site, step) else answer


def test_one_site_with_false_shares_is_outvoted_where_more_help_than_are_needed() -> None:
    def false(answer: Any) -> Any:
        return {"shares": {i: f"{int(share, 16) ^ 1:064x}" for i, share in answer["shares"].items()}}

    world = World(FIVE)
    given = numbers(world)
    world.spoil = lies("site 3", "open", false)
    np.testing.assert_array_equal(world.add(0, "about", given).numbers, total(given))
    world.lost = {"open": {"site 1", "site 2"}}  # now its share is needed
    with pytest.raises(EngineError, match="at least one site sends false ones"):
        world.add(1, "about", given)
    world.lost = {}
    np.testing.assert_array_equal(world.add(1, "about", given).numbers, total(given))


def test_numbers_behind_other_masks_than_signed_are_noticed() -> None:
    world = World(FIVE)

    def noise(answer: Any) -> Any:
        answer["masked"] = answer["masked"] ^ np.int64(0x5A5A5A5A5A5A5A5A)
        return answer

    world.spoil = lies("site 3", "mask", noise)
    with pytest.raises(EngineError, match="do not cancel"):
        world.add(0, "about", numbers(world))


@pytest.mark.parametrize(
    ("step", "change", "why"),
    [
        ("mask", lambda a: a | {"masked": a["masked"][:-1]}, "another question"),
        ("mask", lambda a: a | {"masked": a["masked"].astype(float)}, "another question"),
        ("mask", lambda a: a | {"context": "0" * 64}, "another question"),
        ("keys", lambda a: a | {"signature": "00"}, "do not carry its signature"),
        ("keys", lambda a: {}, "of another version"),
        ("keys", lambda a: {"bundle": a["bundle"] | {"version": 9}, "signature": a["signature"]}, "speaks version 9"),
        ("shares", lambda a: a | {"signature": "ff" * 64}, "did not sign"),
        ("shares", lambda a: a | {"boxes": {}}, "did not deal"),
        ("open", lambda a: {"shares": {}}, "one share per member"),
        ("open", lambda a: {"shares": dict.fromkeys(a["shares"], "xyz")}, "no numbers"),
        ("open", lambda a: {"shares": dict.fromkeys(a["shares"])}, "no numbers"),
        ("open", lambda a: "it is busy", "it is busy"),
    ],
)
def test_an_answer_that_does_not_follow_the_protocol_is_its_sites_failure(step: str, change: Any, why: str) -> None:
    world = World(FIVE)
    given = numbers(world)
    world.spoil = lies("site 3", step, change)
    out = set() if step == "open" else {"site 3"}
    np.testing.assert_array_equal(world.add(0, "about", given).numbers, total(given, out))
    (note,) = world.notes
    assert note[0] == "site 3"
    assert why in note[1]


def test_a_site_of_another_file_is_left_out_and_named() -> None:
    """Its numbers mean something else: another version's lattice, or another algorithm's sums."""
    world = World(FIVE)
    given = numbers(world)
    real = world.sites["site 4"].mask
    world.sites["site 4"].mask = lambda order, ask, about, x: real(order, ask, "other", x)  # type: ignore[method-assign]
    np.testing.assert_array_equal(world.add(0, "about", given).numbers, total(given, {"site 4"}))
    assert world.notes == [
        ("site 4", "it masked numbers for another question: is its version or its file another one?")
    ]


@pytest.mark.parametrize("field", ["sealing", "masking"])
def test_a_key_of_low_order_is_refused_in_a_sentence(field: str) -> None:
    """With such a key everybody shares the same secret. A site that signs one stops sums, and learns nothing."""
    world = World(FIVE)
    real = world.sites["site 2"]

    def low(message: Any) -> Any:
        changed = message["bundle"] | {field: "00" * 32 if field == "sealing" else ["00" * 32] * 4}
        return {"bundle": changed, "signature": signed(real.identity, "keys", changed)}

    world.spoil = lies("site 2", "keys", low)
    with pytest.raises(EngineError, match="needs 3"):
        world.add(0, "about", numbers(world))
    assert {who for who, why in world.notes if "is no key" in why} >= set(world.sites) - {"site 2"}


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(allow_nan=False)
    | st.sampled_from(["", "s", "keys", "open"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(["keys", "shares", "open", "mask", "none"]), st.data())
@settings(max_examples=150, deadline=None)
def test_whatever_a_server_sends_ends_in_a_sentence(step: str, data: Any) -> None:
    sites, orders = dealt(World(FIVE))
    site, order = sites[0], copy.deepcopy(orders[0])
    fields = {"mask": ["setup", "slot", "members", "dealt"]}.get(
        step, ["setup", "slot", "slots", "bundles", "answered"]
    )
    for name in data.draw(st.sets(st.sampled_from(fields), min_size=1)):
        order[name] = data.draw(PLAIN)
    said = ""
    try:
        if step == "mask":
            site.mask(order, data.draw(st.integers(-1, 2)), "about", X)
        else:
            site.answer(order | {"step": step})
    except CoterieError as refusal:
        said = str(refusal)
    assert not said or (said.endswith(".") and "\n" not in said)
