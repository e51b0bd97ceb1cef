"""Malformed files at the command line: exit code 2 and one sentence each, no stack trace, and no file lost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bad_files as bad
import pytest

from coterie.cli import commands as cli

MEANT = {  # right values among the wrong ones
    *("[data] exclude = empty list", "[data] seed = huge", "[data] max_categories = huge"),
    *("[data] drop_missing = boolean", "[data] same_clients = boolean", "[task] hidden = empty list"),
    *("[algorithm] server_lr = fraction", "[algorithm] server_lr = huge", "[privacy] epsilon = fraction"),
    *("[privacy] clip = fraction", "[privacy] clip = huge", "[privacy] ledger = text", "[privacy] ledger = unicode"),
    *("[privacy] users = text", "[privacy] users = unicode", "[privacy] total_epsilon = huge"),
    *("[run] rounds = huge", "[run] seed = huge", "[run] evaluate_every = huge", "[run] evaluate_clients = huge"),
    *("[run] checkpoint_every = huge", "[run] out = text", "[run] out = unicode"),
}
CONFIGURATIONS = {label: text for label, text in bad.configurations() if label not in MEANT}
COMPLETE = ("result.json", "report.html", "comparison.json", "receipt.json")


def told(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit code and what the command said; anything but an exit is raised here, as a stack trace would be."""
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    code = end.value.code
    return (code if isinstance(code, int) else 1), capfd.readouterr().err


def fault(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> str:
    """Why the answer to a malformed file is wrong; empty if it is one sentence and a code that is not 0."""
    try:
        code, text = told(arguments, capfd)
    except Exception as error:
        capfd.readouterr()
        return f"{type(error).__name__}: {error}"
    words = " ".join(text.split())
    if code == 0:
        return "was taken"
    if "Traceback" in words or not words or len(words) > 900:
        return f"no single sentence: {words[:300]}"
    left = [str(p) for p in Path().rglob("*") if p.name in COMPLETE]
    return f"left {left}" if left else ""


def fresh(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    os.chdir(folder)
    bad.frame().to_csv("table.csv", index=False)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Path]:
    before = Path.cwd()
    yield tmp_path / "here"
    os.chdir(before)


def of_section(section: str) -> list[str]:
    return [
        label for label in CONFIGURATIONS if label.startswith(f"[{section}]") or (section == "" and label[0] != "[")
    ]


@pytest.mark.parametrize(
    ("section", "step"),
    [
        *((section, 9) for section in ("", *bad.KEYS)),
        *(pytest.param(section, 1, marks=pytest.mark.slow) for section in bad.KEYS),
    ],
)
def test_a_malformed_configuration_is_refused_in_one_sentence(
    section: str, step: int, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Every ninth of a section's, which are all of its keys; the slow suite tries all."""
    found = {}
    for label in of_section(section)[:: step if section else 1]:
        fresh(here)
        text = CONFIGURATIONS[label]
        Path("run.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
        found[label] = fault(["run", "run.toml"], capfd)
    assert len(found) > 5
    assert not {label: text for label, text in found.items() if text}


@pytest.mark.parametrize("how", bad.HARMLESS_CONFIGURATIONS)
def test_marks_and_ends_of_lines_of_other_systems_do_no_harm(
    how: str, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fresh(here)
    Path("run.toml").write_bytes(bad.HARMLESS_CONFIGURATIONS[how](bad.toml_text(bad.GOOD)))
    assert told(["run", "run.toml"], capfd)[0] == 0


def commands(name: str) -> dict[str, list[str]]:
    columns = ["--client", "shop", "--target", "y"]
    return {
        "compare": ["compare", name, *columns, "--out", "out"],
        "run": ["run", "run.toml"],
    }


SLOWLY = [pytest.param(command, marks=pytest.mark.slow) for command in ("run",)]


@pytest.mark.parametrize("command", ["compare", *SLOWLY])
def test_a_malformed_csv_is_refused_in_one_sentence(
    command: str, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    found = {}
    for label, data in bad.bad_csvs():
        fresh(here)
        Path("table.csv").write_bytes(data)
        Path("run.toml").write_text(bad.toml_text(bad.GOOD))
        found[label] = fault(commands("table.csv")[command], capfd)
        assert Path("table.csv").read_bytes() == data
    assert not {label: text for label, text in found.items() if text}


@pytest.mark.parametrize("command", ["compare", *SLOWLY[1:]])
def test_a_malformed_table_of_another_kind_is_refused_in_one_sentence(
    command: str, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    found = {}
    for label, name, write in bad.other_tables():
        fresh(here)
        write(Path(name))
        data: dict[str, Any] = bad.GOOD["data"] | {"path": name}
        Path("run.toml").write_text(bad.toml_text(bad.GOOD | {"data": data}))
        found[label] = fault(commands(name)[command], capfd)
    assert not {label: text for label, text in found.items() if text}


# ---- folders of runs -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plain run, a private one with a ledger, and a comparison, all finished."""
    folder, before = tmp_path_factory.mktemp("runs"), Path.cwd()
    os.chdir(folder)
    try:
        bad.frame().to_csv("table.csv", index=False)
        privacy = {"epsilon": 30.0, "delta": 1e-5, "clip": 1.0, "ledger": "ledger.sqlite"}
        private = bad.GOOD | {"run": {"rounds": 2, "out": "private"}, "privacy": privacy}
        Path("run.toml").write_text(bad.toml_text(bad.GOOD))
        Path("private.toml").write_text(bad.toml_text(private))
        for arguments in (
            ["run", "run.toml"],
            ["run", "private.toml"],
            [*commands("table.csv")["compare"][:-1], "cmp"],
        ):
            with pytest.raises(SystemExit) as end:
                cli.main(arguments)
            assert end.value.code == 0
    finally:
        os.chdir(before)
    return folder


READERS = {
    "report": lambda folder: ["report", folder],
    "resume": lambda folder: ["resume", folder],
    "receipt": lambda folder: ["privacy", "receipt", folder],
}
CASES = [("private", "receipt")]
SLOW_CASES = [("out", "report"), ("private", "report"), ("cmp", "report"), ("out", "resume"), ("private", "resume")]


def check_damages(runs: Path, folder: str, command: str, to: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Each damage ends in success or one sentence; no file but those that a run writes anew is lost."""
    found = {}
    for label, damage in bad.damages(runs / folder):
        shutil.rmtree(to, ignore_errors=True)
        shutil.copytree(runs, to)
        os.chdir(to)
        damage(to / folder)
        before = {p for p in to.rglob("*") if p.is_file() and p.name != "result.json"}
        try:
            code, text = told(READERS[command](folder), capfd)
        except Exception as error:
            found[label] = f"{type(error).__name__}: {error}"
            continue
        if code not in (0, 1) and ("Traceback" in text or not text.strip()):  # 1: shown, and not valid
            found[label] = text
        lost = [p for p in before if not p.is_file()]
        if lost:
            found[label] = f"lost {lost}"
    assert not found


@pytest.mark.parametrize(("folder", "command"), CASES)
def test_a_damaged_folder_of_a_run_ends_in_a_sentence(
    runs: Path, folder: str, command: str, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    check_damages(runs, folder, command, here, capfd)


@pytest.mark.slow
@pytest.mark.parametrize(("folder", "command"), SLOW_CASES)
def test_every_damage_ends_in_success_or_a_sentence(
    runs: Path, folder: str, command: str, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    check_damages(runs, folder, command, here, capfd)


def test_an_edited_receipt_is_not_shown_in_a_report(runs: Path, here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(runs, here)
    os.chdir(here)
    file = Path("private/receipt.json")
    receipt = json.loads(file.read_text())
    file.write_text(json.dumps(receipt | {"epsilon": 0.1}))
    code, text = told(["report", "private"], capfd)
    assert code == 2
    assert "cannot be believed: it states ε = 0.1," in " ".join(text.split())
    assert not Path("private/report.html").exists()


def test_swapped_receipts_and_checkpoints_are_refused(
    runs: Path, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(runs, here)
    os.chdir(here)
    shutil.copy("private/checkpoint.safetensors", "out/checkpoint.safetensors")
    code, text = told(["resume", "out"], capfd)
    assert (code, "Traceback" in text) == (2, False)
    shutil.copy("out/models.safetensors", "private/models.safetensors")
    code, text = told(["report", "private"], capfd)
    assert (code, "Traceback" in text) == (2, False)


# ---- terminals -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["run", "bad.toml"], ["compare", "bad.csv", "--client", "a", "--target", "b"]])
@pytest.mark.parametrize(
    "terminal", [{"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}, {"TERM": "dumb"}, {"COLUMNS": "20"}]
)
def test_a_real_process_prints_one_sentence_on_any_terminal(
    arguments: list[str], terminal: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "bad.toml").write_text('[data]\nname = "dïgits"\n[algorithm]\nname = "fedavg"\n', "utf-8")
    (tmp_path / "bad.csv").write_bytes(b"\x00\xff,\xfe\n1,2\n")
    done = subprocess.run(
        [sys.executable, "-m", "coterie", *arguments],
        cwd=tmp_path,
        env=os.environ | terminal,
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr
    assert done.stderr.strip()
