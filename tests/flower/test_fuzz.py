"""Ten thousand mutated messages to a site, and as many mutated answers to a server: each ends in one sentence."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conformance_settings import configured
from safetensors.torch import save
from together import SIZES, InProcess, deployed, job, split, table

import coterie as ct
from coterie.base.tree import flatten, unflatten
from coterie.flower import answers, wire
from coterie.flower.engine import SitesEngine, checked
from coterie.flower.heads import TABLE, checked_head

MANY, PARTS = 10_000, 8
ODD: list[Any] = [
    None, True, False, -1, 0, 1, 2, 2**31, 2**63, -(2**63), 2**64, 10**40, 0.5, -0.0, float("nan"), float("inf"), "", "x",
    "../../../../NAME", "x/../../../../NAME", "/tmp/NAME", "a\x00b", "\ud800", "\x1b[2J", "a" * 300, [], [[]], [None], {},
    {"": None}, {"a": {"b": [1]}}, [0, 0], [-1], [2**70], ["x", 1], ["MeanBy", 10**9], ["MeanBy", "x"],
]  # fmt: skip


def odd(rng: random.Random, value: Any) -> Any:
    """Something else in the place of a value, or somewhere inside it."""
    if isinstance(value, dict) and value and rng.random() < 0.6:
        key = rng.choice(list(value))
        if rng.random() < 0.1:
            return {k: v for k, v in value.items() if k != key}
        return value | {key: odd(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.5:
        i = rng.randrange(len(value))
        return [*value[:i], odd(rng, value[i]), *value[i + 1 :]]
    return copy.deepcopy(rng.choice(ODD))


def odd_tensor(rng: random.Random, t: torch.Tensor) -> torch.Tensor:
    how = rng.randrange(5)
    if how == 0:
        return t.reshape(-1)[: rng.randrange(4)]
    if how == 1:
        return t.to(rng.choice([torch.int64, torch.float16, torch.bool, torch.float64]))
    if how == 2:
        return torch.full_like(t, rng.choice([0, 1, -1]))
    if how == 3:
        return torch.zeros(0, *t.shape)
    return t.double() * 1e300


def mutated(rng: random.Random, block: bytes, *, keep: tuple[str, ...] = ()) -> bytes:
    """The message with a field, a tensor or some bytes changed."""
    if rng.random() < 0.1:
        spoiled = bytearray(block)
        for _ in range(rng.randrange(1, 4)):
            spoiled[rng.randrange(len(spoiled))] = rng.randrange(256)
        return bytes(spoiled)
    head, tree = wire.unpack(block)
    flat = flatten(tree)
    if flat and rng.random() < 0.2:
        name = rng.choice(list(flat))
        flat[name] = odd_tensor(rng, flat[name])
        if rng.random() < 0.3:
            del flat[name]
    else:
        key = rng.choice([k for k in head if k not in keep])
        head[key] = odd(rng, head[key])
    return wire.pack(head, unflatten(flat))


def files(folder: Path) -> set[Path]:
    return {p for p in folder.rglob("*") if p.is_file()}


def works(told: Callable[[], Any]) -> bool:
    """Whether there is an answer; whatever else happens must be one sentence."""
    said = ""
    try:
        told()
    except ct.errors.CoterieError as error:
        said = str(error)
    assert not said or (said.endswith(".") and len(said.splitlines()) == 1)
    assert "does not fit this run" not in said  # the table of fields has no gap
    return not said


@pytest.mark.parametrize("part", range(PARTS))
def test_ten_thousand_messages_end_in_an_answer_or_one_sentence(part: int, tmp_path: Path) -> None:
    work = job(ct.Ditto(local=ct.LocalSGD(steps=1, lr=0.1, batch_size=None)), rounds=1)
    nodes = InProcess(work, split(table((9, 8, 7)), 1), tmp_path / "a" / "b" / "c")
    deployed(work, None, tmp_path / "a" / "b" / "c", 1, nodes=nodes)
    site, rng, good = nodes.sites[100], random.Random(part), 0
    kinds = {wire.unpack(m)[0]["do"]: m for _, m in nodes.sent}
    ends = [kinds.pop(k) for k in ("ask", "finish")]
    before = files(tmp_path) - files(site.folder)
    for i in range(MANY // PARTS):
        block = ends[0] if i % 3 else rng.choice([*kinds.values(), ends[1]])
        good += works(lambda block=block: site.answer(mutated(rng, block)))  # type: ignore[misc]
    assert files(tmp_path) - files(site.folder) == before  # nothing was written beside the site's folder
    assert 0 < good < MANY // PARTS
    assert set(kinds) | {"ask", "finish", "hello", "secure", "look"} == set(TABLE)  # look: test_study_training


@pytest.mark.parametrize("name", ["down", "state/x", "x", "", "/", "down/" + "a/" * 3000])
def test_tensors_are_inside_the_parts_of_their_message(name: str, tmp_path: Path) -> None:
    _, nodes, _ = deployed(job(configured("fedavg"), rounds=1), table(SIZES), tmp_path)
    head = next(h for h in (wire.unpack(m)[0] for _, m in nodes.sent) if h["do"] == "ask")
    block = save({name: torch.zeros(1)}, {"head": json.dumps(head | {"number": 2**70}), "order": json.dumps([name])})
    with pytest.raises(wire.Malformed, match=r"must be inside down, each, known|does not fit the message"):
        nodes.sites[100].answer(block)


@pytest.mark.parametrize("field", ["run", "attempt", "have", "base"])
def test_a_name_cannot_leave_the_folder(field: str, tmp_path: Path) -> None:
    work, inside = job(configured("ditto"), rounds=1), tmp_path / "a" / "b" / "c" / "d"
    _, nodes, _ = deployed(work, table(SIZES), inside)
    head, tree = next(m for m in (wire.unpack(m) for _, m in nodes.sent) if m[0]["do"] == "ask")
    for wrong in (
        "x/../../../../NAME",
        "../NAME",
        "/tmp/NAME",
        "",
        "x" * 65,
        "a.b",
        "é",
        "x\n",
        None if field == "run" else 5,
    ):
        before = files(tmp_path)
        with pytest.raises(ct.errors.CoterieError, match=f"'{field}' of the message 'ask' must be"):
            nodes.sites[100].answer(wire.pack(head | {field: wrong, "number": 2**70}, tree))
        assert files(tmp_path) == before


def test_a_run_of_the_same_name_does_not_remove_another(tmp_path: Path) -> None:
    _, nodes, _ = deployed(job(configured("fedavg"), rounds=1), table(SIZES), tmp_path)
    begin = next(m for _, m in nodes.sent if wire.unpack(m)[0]["do"] == "begin")
    before = files(tmp_path)
    with pytest.raises(ct.errors.CoterieError, match="begun a run of that name"):
        nodes.sites[100].answer(begin)
    assert files(tmp_path) == before


def test_every_field_of_every_message_is_required(tmp_path: Path) -> None:
    _, nodes, _ = deployed(job(configured("fedavg"), rounds=1), table(SIZES), tmp_path)
    for head in {wire.unpack(m)[0]["do"]: wire.unpack(m)[0] for _, m in nodes.sent}.values():
        assert checked_head(head | {"more": 1})[1] == {k: v for k, v in head.items() if k != "do"} | (
            {"private": None} if head["do"] == "ask" else {}
        )
        for field in TABLE[head["do"]]:
            if head.get(field) is not None:
                with pytest.raises(wire.Malformed, match=f"'{field}' of the message"):
                    checked_head(head | {field: object()})


def test_a_number_has_eight_bytes() -> None:
    digits = {"do": "digits", "prefixes": {"a": [0]}}
    assert [checked_head(digits | {"level": n})[1]["level"] for n in (0, 7)] == [0, 7]
    with pytest.raises(wire.Malformed, match="'level' of the message"):
        checked_head(digits | {"level": 8})


def test_places_lie_below_the_number_of_clients() -> None:
    begin = {"do": "begin", "run": "r", "ticket": "t", "agreement": {"plan": [], "classes": None}, "n_clients": 2}
    assert checked_head(begin | {"places": {"a": 1, "b": 0}})[1]["places"] == {"a": 1, "b": 0}
    with pytest.raises(wire.Malformed, match="must be below n_clients"):
        checked_head(begin | {"places": {"a": 0, "b": 2}})


@pytest.mark.parametrize("part", range(PARTS))
def test_ten_thousand_answers_are_taken_or_refused_in_one_sentence(part: int, tmp_path: Path) -> None:
    work = job(configured("fedavg"), rounds=1)
    nodes, kept = InProcess(work, split(table(SIZES), 3), tmp_path), []
    original = SitesEngine._let_in

    def spy(self: Any, answer: Any, ask: Any, env: Any, site: str, place: Any, expected: Any) -> Any:
        kept.append((answer, ask, ask.clients[place], expected, env))
        return original(self, answer, ask, env, site, place, expected)

    SitesEngine._let_in = spy  # type: ignore[method-assign]
    try:
        deployed(work, None, tmp_path, nodes=nodes)
    finally:
        SitesEngine._let_in = original  # type: ignore[method-assign]
    told = [wire.unpack(a)[0] for n, a in nodes.got if n == 100]
    joined, digits, spread = (next(a for a in told if k in a) for k in ("columns", "digits", "spread"))
    asked, most = {"a": len(digits["digits"]["a"])}, {"a": sum(digits["digits"]["a"][0])}
    rows = {c: int(four[0]) for c, four in spread["spread"].items()}
    checks: list[tuple[bytes, Any]] = [
        (wire.pack(joined), lambda h, t: answers.joined(h, work.data, private=False)),
        (wire.pack(digits), lambda h, t: answers.digits(h, asked, most)),
        (wire.pack(spread), lambda h, t: answers.spread(h, rows)),
        (wire.pack({"scores": {"accuracy": [1.0, 2]}}), lambda h, t: answers.scores(h.get("scores"), ("accuracy",), 3)),
        (wire.pack({"ticket": "abc"}), lambda h, t: answers.ticket(h)),
        *[(a, lambda h, t, more=more: checked(h, t, *more)) for a, *more in kept],
    ]
    rng, good = random.Random(100 + part), 0
    for _ in range(MANY // PARTS):
        block, check = rng.choice(checks)
        good += works(lambda block=block, check=check: check(*wire.unpack(mutated(rng, block))))  # type: ignore[misc]
    assert 0 < good < MANY // PARTS


@pytest.mark.parametrize(
    "why", ["\x1b[2J\x1b[31mroot", "a\x9b31m", "b\u202egnp.exe", "c\u2066d\u2069", "e\rf\x07\x00", "\u2028g\ud800"]
)
def test_what_a_site_says_does_not_steer_a_terminal(why: str) -> None:
    line = wire.one_line(why)
    assert line.isprintable()
    assert json.loads(json.dumps(line)) == line
    assert np.all([c.isprintable() for c in line])
