"""A receipt that was edited, a ledger that was changed, copied or deleted, and what each may still claim."""

from __future__ import annotations

import json
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.privacy import (
    ExactNoise,
    JointSum,
    Ledger,
    LedgerError,
    Line,
    Privacy,
    Receipt,
    SimulationNoise,
    adopt,
    make_plan,
    write_receipt,
)
from coterie.privacy.store import _ROW, link


def run(ledger: Path | None, epsilon: float = 3.0, total: float | None = None, noise: Any = None) -> Receipt:
    noise = noise or ExactNoise()
    plan = make_plan(epsilon, 1e-6, [Line("rounds", 1, 2)])
    budget = Privacy(epsilon, 1e-6, 1.0, ledger=ledger, total_epsilon=total, noise=noise.name)
    book = Ledger(budget, plan)
    mechanism = JointSum("rounds", 3, 1.0, plan.noise_multiplier("rounds"))
    values = [mechanism(np.ones((5, 3)), noise, book.book) for _ in range(2)]
    book.close()
    return write_receipt(book, values, n_users=5)


def edited(receipt: Receipt, **changes: Any) -> Receipt:
    told = json.loads(receipt.to_json())
    changes = {name: told[name] | new if isinstance(new, dict) else new for name, new in changes.items()}
    return Receipt.from_json(json.dumps(told | changes))


def test_an_honest_receipt_is_believed_with_its_ledger_and_without(tmp_path: Path) -> None:
    receipt = run(tmp_path / "book.sqlite")
    run(tmp_path / "book.sqlite", 1.0, total=9.0)  # the ledger goes on; the receipt stays good
    again = Receipt.from_json(receipt.to_json())
    assert again == receipt
    assert again.verify().fault == ""
    assert again.verify().signature
    (tmp_path / "book.sqlite").rename(tmp_path / "away.sqlite")
    assert again.verify().fault == ""
    assert "only the arithmetic" in again.verify().sentence
    assert again.verify(tmp_path / "away.sqlite").signature
    with pytest.raises(LedgerError, match="there is no ledger"):
        again.verify(tmp_path / "nowhere.sqlite")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"epsilon": 0.1}, "states ε = 0.1, and its releases cost ε = "),
        ({"delta": 1e-3}, "its releases cost"),
        ({"curve": [[0.1, 1e-6]]}, "its curve states"),
        ({"valid": False}, "valid = false"),
        ({"budget": {"epsilon": 1.0, "delta": 1e-6, "total_epsilon": 1.0}}, "more than its budget"),
        ({"budget": {"epsilon": 1.0, "delta": 1e-6, "total_epsilon": 9.0}}, "more than its budget of 1"),
        ({"strength": "weak formal guarantee"}, "weak"),
        ({"n_users": 50_000}, "checksum"),
        ({"scope": "all runs since 1970"}, "checksum"),
        ({"noise": {"mode": "simulation"}}, "valid = true"),
    ],
)
def test_an_edited_receipt_is_not_believed(changes: dict[str, Any], told: str) -> None:
    verdict = edited(run(None), **changes).verify()
    assert told in verdict.fault
    assert verdict.sentence.startswith("This receipt cannot be believed: ")


def test_a_signature_with_gaps_or_strange_values_is_not_believed(tmp_path: Path) -> None:
    receipt = run(tmp_path / "book.sqlite")
    for name in ("ledger", "bookings", "head", "mac"):
        kept = {key: value for key, value in receipt.signature.items() if key != name}
        assert "cannot be read" in replace(receipt, signature=kept).verify().fault
    assert "cannot be read" in replace(receipt, signature=receipt.signature | {"file": 3}).verify().fault


def test_a_weak_delta_is_believed_if_it_is_named(tmp_path: Path) -> None:
    book = Ledger(Privacy(3, 0.25, 1.0))
    value = JointSum("x", 3, 1.0, 9.0)(np.ones((4, 3)), ExactNoise(), book.book)
    receipt = write_receipt(book, [value], n_users=4)
    assert "1/4" in receipt.strength
    assert receipt.verify().fault == ""
    assert "to be compared with 1/4" in replace(receipt, strength="").verify().fault
    assert "to be compared with 1/3" in replace(receipt, n_users=3).verify().fault


def test_edited_releases_do_not_fit_and_a_new_checksum_does_not_help(tmp_path: Path) -> None:
    from dataclasses import asdict

    from coterie.privacy.signing import canonical, seal

    receipt = run(tmp_path / "book.sqlite")
    line = receipt.releases[0]
    assert "cost" in replace(receipt, releases=(line | {"count": 1},)).verify().fault
    assert "σ/Δ times Δ" in replace(receipt, releases=(line | {"noise_multiplier": 99.0},)).verify().fault
    forged = replace(receipt, n_users=7)
    forged = replace(forged, signature=seal(canonical(asdict(forged)), receipt.signature, b"another key"))
    assert "signature is not that of the ledger" in forged.verify().fault
    other = run(tmp_path / "other.sqlite")
    assert "not signed by the ledger" in other.verify(tmp_path / "book.sqlite").fault


def test_a_curve_and_a_total_must_follow_too(tmp_path: Path) -> None:
    receipt = run(tmp_path / "book.sqlite", 1.0, total=2.0)
    assert receipt.verify().fault == ""
    (e, d), *rest = receipt.curve
    assert "its curve states" in replace(receipt, curve=((e, d / 2), *rest)).verify().fault
    for total, told in ((0.9 * receipt.epsilon, "less than this run's"), (2.1, "more than their budget of 2")):
        assert told in replace(receipt, cumulative=receipt.cumulative | {"epsilon": total}).verify().fault
    alone = run(None)
    forged = replace(alone, cumulative=alone.cumulative | {"epsilon": alone.epsilon})
    assert "speaks for this run alone" in forged.verify().fault


def test_a_signature_holds_for_the_bookings_it_was_made_over_and_no_others(tmp_path: Path) -> None:
    first, second = run(tmp_path / "book.sqlite", 1.0), run(tmp_path / "book.sqlite", 1.0, total=9.0)
    assert first.signature["bookings"] < second.signature["bookings"]
    earlier = {name: first.signature[name] for name in ("bookings", "head")}
    forged = replace(second, signature=second.signature | earlier)
    assert "signature is not that of the ledger" in forged.verify().fault


def test_a_ledger_that_was_restored_from_before_the_run_does_not_hold_its_bookings(tmp_path: Path) -> None:
    book = tmp_path / "book.sqlite"
    run(book, 1.0)
    shutil.copy(book, tmp_path / "old.sqlite")
    second = run(book, 1.0, total=9.0)
    assert "does not hold the bookings" in second.verify(tmp_path / "old.sqlite").fault


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE releases SET count = 0 WHERE number = 1",
        "UPDATE releases SET users = 'others' WHERE number = 2",
        "DELETE FROM releases WHERE number = 1",
        "DELETE FROM releases WHERE number = 2",
        "DELETE FROM releases",
        "UPDATE releases SET number = 9 WHERE number = 1",
        "DELETE FROM meta WHERE name = 'ledger'",
    ],
)
def test_a_changed_ledger_is_refused_when_it_is_opened(statement: str, tmp_path: Path) -> None:
    book = tmp_path / "book.sqlite"
    run(book)
    with sqlite3.connect(book) as db:
        db.execute(statement)
    db.close()
    with pytest.raises(LedgerError, match="changed"):
        Ledger(Privacy(3, 1e-6, 1.0, ledger=book, total_epsilon=9.0))


def test_a_changed_booking_with_a_new_hash_does_not_fit_the_next_one(tmp_path: Path) -> None:
    book = tmp_path / "book.sqlite"
    run(book)
    with sqlite3.connect(book) as db:
        db.execute("UPDATE releases SET count = 0 WHERE number = 1")
        row = db.execute(f"SELECT {_ROW} FROM releases WHERE number = 1").fetchone()
        (name,) = db.execute("SELECT value FROM meta WHERE name = 'ledger'").fetchone()
        db.execute("UPDATE releases SET chain = ? WHERE number = 1", (link(name, row),))
    db.close()
    with pytest.raises(LedgerError, match="booking 2 does not fit the one before"):
        Ledger(Privacy(3, 1e-6, 1.0, ledger=book, total_epsilon=9.0))


def test_a_ledger_is_for_its_owner_alone(tmp_path: Path) -> None:
    run(tmp_path / "book.sqlite")
    assert (tmp_path / "book.sqlite").stat().st_mode & 0o777 == 0o600


def test_the_first_line_says_which_runs_are_counted(tmp_path: Path) -> None:
    alone = run(None)
    assert alone.scope.startswith("this run alone: ")
    assert alone.cumulative["epsilon"] is None
    assert "this run alone: " in alone.to_text().splitlines()[0]
    assert "this run alone: " in alone._repr_html_().split("</strong>")[0]
    book = tmp_path / "book.sqlite"
    first, second = run(book, 1.0), run(book, 1.0, total=9.0)
    assert second.cumulative["epsilon"] > first.cumulative["epsilon"] == first.epsilon
    for words in ("all runs on 'users' since 20", str(book), f"ε = {second.cumulative['epsilon']:g} for all runs"):
        assert words in second.to_text().splitlines()[0]


def test_a_ledger_that_the_user_did_not_choose_speaks_for_its_run_alone(tmp_path: Path) -> None:
    plan = make_plan(3, 1e-6, [Line("rounds", 1, 1)])
    book = Ledger(Privacy(3, 1e-6, 1.0, ledger=tmp_path / "book.sqlite"), plan, named=False)
    value = JointSum("rounds", 3, 1.0, plan.noise_multiplier("rounds"))(np.ones((5, 3)), ExactNoise(), book.book)
    receipt = write_receipt(book, [value], n_users=5)
    assert receipt.valid
    assert receipt.cumulative["epsilon"] is None
    assert receipt.scope.startswith("this run alone: ")
    assert receipt.verify().fault == ""


def test_a_copied_ledger_voids_receipts_until_it_is_adopted(tmp_path: Path) -> None:
    book, copy = tmp_path / "book.sqlite", tmp_path / "copy.sqlite"
    run(book, 1.0)
    shutil.copy(book, copy)
    tainted = run(copy, 1.0, total=9.0)
    assert not tainted.valid
    assert "this ledger was copied or moved" in tainted.reasons[0]
    assert run(book, 1.0, total=9.0).valid
    assert f"from {book}" in adopt(copy)
    adopted = run(copy, 1.0, total=9.0)
    assert adopted.valid
    assert "adopted on " in adopted.scope
    assert "nothing to adopt" in adopt(copy)
    copy.rename(tmp_path / "moved.sqlite")
    assert not run(tmp_path / "moved.sqlite", 1.0, total=9.0).valid
    shutil.copy(book, tmp_path / "backup.sqlite")
    (tmp_path / "backup.sqlite").rename(book)  # the same path, and another file
    assert not run(book, 1.0, total=9.0).valid
    with pytest.raises(LedgerError, match="there is no ledger"):
        adopt(copy)


def test_a_checkpoint_that_another_copy_left_behind_is_refused(tmp_path: Path) -> None:
    budget = Privacy(3, 1e-6, 1.0, ledger=tmp_path / "book.sqlite")
    first = Ledger(budget, make_plan(3, 1e-6, [Line("rounds", 1, 4)]))
    first.settle()
    saved = first.state()
    died_early = Ledger.restore(budget, saved)  # and died before or after its checkpoint was written
    written = died_early.state()
    for state in (saved, written):
        Ledger.restore(budget, state)
    goes_on = Ledger.restore(budget, written)
    after = goes_on.state()
    goes_on.settle()
    Ledger.restore(budget, after)
    for state in (saved, written):
        with pytest.raises(LedgerError, match=r"behind its ledger.*another copy of its folder"):
            Ledger.restore(budget, state)
    (tmp_path / "book.sqlite").unlink()
    with pytest.raises(LedgerError, match="is not there"):
        Ledger.restore(budget, after)


def test_a_ledger_that_was_set_back_does_not_hold_the_checkpoints_releases(tmp_path: Path) -> None:
    book = tmp_path / "book.sqlite"
    budget, plan = Privacy(3, 1e-6, 1.0, ledger=book), make_plan(3, 1e-6, [Line("rounds", 1, 4)])
    ledger = Ledger(budget, plan)
    before = book.read_bytes()
    JointSum("rounds", 3, 1.0, plan.noise_multiplier("rounds"))(np.ones((5, 3)), ExactNoise(), ledger.book)
    state = ledger.state()
    Ledger.restore(budget, state)
    book.write_bytes(before)  # in the same place: it looks like the file that was there
    with pytest.raises(LedgerError, match="does not hold the releases of this checkpoint"):
        Ledger.restore(budget, state)


def test_a_booking_of_several_releases_keeps_what_all_of_them_cost_on_the_lattice(tmp_path: Path) -> None:
    event = replace(JointSum("x", 3, 1.0, 50.0).event(), count=7)
    book = Ledger(Privacy(3, 1e-6, 1.0, ledger=tmp_path / "book.sqlite"))
    book.book(event)
    with sqlite3.connect(tmp_path / "book.sqlite") as db:
        (slack,) = db.execute("SELECT slack FROM releases").fetchone()
    db.close()
    assert event.slack > 0
    assert slack == pytest.approx(7 * event.slack, rel=1e-12, abs=0)


def test_no_exit_of_a_simulation_looks_like_a_release() -> None:
    noise = SimulationNoise(1)
    receipt = run(None, noise=noise)
    released = JointSum("x", 3, 1.0, 5.0)(np.ones((5, 3)), noise)
    assert any("NOT A DP RELEASE" in reason for reason in released.map(np.sum).taint)
    assert receipt.to_text().startswith("NOT A DP RELEASE")
    assert "NOT A DP RELEASE" in receipt._repr_html_().split("</strong>")[0]
    assert json.loads(receipt.to_json())["reasons"][0].startswith("NOT A DP RELEASE")
    assert not receipt.valid
    assert "valid = true" in edited(receipt, valid=True, reasons=[]).verify().fault


@pytest.mark.parametrize("kind", ["empty", "text", "database"])
def test_a_receipt_that_names_another_file_does_not_change_it(kind: str, tmp_path: Path) -> None:
    """Whoever hands over a receipt chooses the path of its ledger; that file may be any file of the reader's."""
    file = tmp_path / "mine"
    file.write_text("" if kind == "empty" else "mine")
    if kind == "database":
        file.unlink()
        with sqlite3.connect(file) as db:
            db.execute("CREATE TABLE mine (mine)")
        db.close()
    file.chmod(0o644)
    before = file.read_bytes()
    receipt = run(tmp_path / "book.sqlite")
    other = replace(receipt, signature=receipt.signature | {"file": str(file)})
    with pytest.raises(LedgerError, match=r"mine"):
        other.verify()
    assert file.read_bytes() == before
    assert file.stat().st_mode & 0o777 == 0o644
    assert sorted(p.name for p in tmp_path.iterdir()) == ["book.sqlite", "mine"]


def test_a_signature_of_odd_characters_is_a_wrong_signature(tmp_path: Path) -> None:
    receipt = run(tmp_path / "book.sqlite")
    verdict = replace(receipt, signature=receipt.signature | {"mac": "é\ud800"}).verify()
    assert "its signature is not that of the ledger" in verdict.fault


def test_a_ledger_made_of_endless_views_is_refused_at_once(tmp_path: Path) -> None:
    made, file = run(tmp_path / "book.sqlite"), tmp_path / "endless.sqlite"
    with sqlite3.connect(file) as db:
        db.execute("CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)")
        for name in ("ledger", "key", "created", "end", "place"):
            db.execute("INSERT INTO meta VALUES (?, '00')", (name,))
        endless = "WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT"
        columns = "n AS number, 'r' AS run, 'u' AS users, 'n' AS name, 1 AS count, 0.0 AS slack, '' AS event, '' AS at"
        db.execute(f"CREATE VIEW releases AS {endless} {columns}, '' AS chain FROM c")
        db.execute(f"CREATE VIEW runs AS {endless} 'r' AS run, '0' AS ticket FROM c")
    with pytest.raises(LedgerError, match="is not a ledger"):
        made.verify(file)
