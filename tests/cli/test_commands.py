"""The command line: what it prints, and one sentence instead of a stack trace for every mistake."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import coterie as ct
from coterie.algorithms import ALGORITHMS
from coterie.cli import commands as cli
from coterie.comparison.compare import Comparison
from coterie.training import checkpoint

RUN = """
[data]
name = "digits"
clients = 8
clusters = 2
[task]
model = "mlp"
hidden = [8]
[algorithm]
name = "fedavg"
server_momentum = 0.5
local = { steps = 3, lr = 0.1, batch_size = 8 }
[run]
rounds = 6
checkpoint_every = 1
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Three shops; shop c decides the other way round."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"shop": np.repeat(["a", "b", "c"], 60), "x": rng.normal(size=180), "w": rng.normal(size=180)})
    frame["y"] = ((frame["x"] > 0) ^ (frame["shop"] == "c")).astype(int)
    path = tmp_path / "shops.csv"
    frame.to_csv(path, index=False)
    return path


def fails(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Runs the command, which must end with code 2 and one line on stderr."""
    with pytest.raises(SystemExit) as stop:
        cli.main([str(a) for a in arguments])
    assert stop.value.code == 2
    text = capsys.readouterr().err.strip()
    assert "Traceback" not in text
    assert len(text.splitlines()) == 1
    return text


def prints(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> str:
    with pytest.raises(SystemExit) as stop:
        cli.main([str(a) for a in arguments])
    out = capsys.readouterr()
    assert stop.value.code == code, out.err
    return re.sub(r"[│\s]+", " ", out.out)


def test_compare_says_who_loses(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, find = [], Comparison.coalition

    def counted(self: Comparison) -> Any:
        found.append(find(self))
        return found[-1]

    monkeypatch.setattr(Comparison, "coalition", counted)
    options = ("--client", "shop", "--target", "y", "--algorithms", "local,fedavg", "--rounds", 2, "--seeds", 1)
    text = prints(capsys, "compare", table, *options, "--out", tmp_path / "out")
    assert "fedavg" in text
    assert "▼" in text
    assert "Recommendation: " in text
    assert {"report.html", "table.csv", "gains.csv", "scores.parquet"} <= {p.name for p in (tmp_path / "out").iterdir()}
    table_of = pd.read_csv(tmp_path / "out" / "table.csv", index_col="method")
    assert table_of.loc["alone", "c"] < 0.5 < table_of.loc["together", "c"]  # log loss
    assert table_of.loc["local", "c"] < table_of.loc["fedavg", "c"]
    marks = pd.read_csv(tmp_path / "out" / "gains.csv").set_index(["method", "client"])["mark"]
    assert marks["fedavg", "c"] == "loses"
    (coalition,) = found  # looked for once, and told wherever it belongs
    left = " ".join(coalition.verdict().split())
    assert left in text
    assert left in (tmp_path / "out" / "verdict.txt").read_text()
    assert escape(left) in (tmp_path / "out" / "report.html").read_text("utf-8")


def test_compare_options_reach_the_data(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--client", "shop", "--target", "x", "--kind", "regression", "--features", "w,y", "--exclude", "w")
    text = prints(capsys, "compare", table, *options, "--algorithms", "fedavg", "--rounds", 1, "--seeds", 1)
    assert "lower is better" in text


def test_true_groups_may_be_a_column(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = pd.read_csv(table)
    frame.assign(group=frame["shop"] == "c").to_csv(table, index=False)
    options = ("--client", "shop", "--target", "y", "--algorithms", "oracle", "--rounds", 2, "--seeds", 1)
    assert "Oracle needs the true clusters" in fails(capsys, "compare", table, *options, "--exclude", "group")
    assert "oracle" in prints(capsys, "compare", table, *options, "--cluster", "group")


def test_bad_input_to_compare(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = ("--client", "shop", "--target", "y")
    assert "There is no file" in fails(capsys, "compare", tmp_path / "absent.csv", *good)
    assert "Did you mean shops.csv" in fails(capsys, "compare", tmp_path / "shop.csv", *good)
    assert "did you mean 'shop'" in fails(capsys, "compare", table, "--client", "shopp", "--target", "y")
    assert "There is no target column 'yy'" in fails(capsys, "compare", table, "--client", "shop", "--target", "yy")
    assert "There is no feature column 'q'" in fails(capsys, "compare", table, *good, "--features", "x,q")
    assert "Did you mean 'fedavg'" in fails(capsys, "compare", table, *good, "--algorithms", "fedvag")
    assert "Did you mean 'accuracy'" in fails(capsys, "compare", table, *good, "--metric", "acuracy")
    assert "test_fraction must be in" in fails(capsys, "compare", table, *good, "--test-fraction", "1.5")
    assert "--out must be a folder" in fails(capsys, "compare", table, *good, "--out", table)


def test_a_client_with_one_class_is_named(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = pd.read_csv(table)
    frame.loc[frame["shop"] == "b", "y"] = 1
    frame.to_csv(table, index=False)
    good = ("--client", "shop", "--target", "y", "--algorithms", "fedavg", "--rounds", 1, "--seeds", 1)
    assert "client 'b' has only" in fails(capsys, "compare", table, *good, "--one-class", "error")
    assert "fedavg" in prints(capsys, "compare", table, *good)  # it is no reason to refuse the others'


def test_bad_configs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.toml"
    assert "There is no config file" in fails(capsys, "run", config)
    config.write_text("[data")
    assert "is not valid TOML" in fails(capsys, "run", config)
    config.write_text(RUN.replace("rounds", "rouns"))
    assert "Unknown key run.rouns. Did you mean 'rounds'" in fails(capsys, "run", config)
    config.write_text(RUN.replace("lr = 0.1", "lr = 1e30"))
    assert "Lower the learning rate" in fails(capsys, "run", config, "--out", tmp_path / "diverged")


def test_resume_needs_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "holds no run to resume" in fails(capsys, "resume", tmp_path)
    assert "There is no folder" in fails(capsys, "resume", tmp_path / "absent")


def test_run_and_overwrite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.toml"
    config.write_text(RUN)
    assert "6 rounds, seed 0, finished" in prints(capsys, "run", config, "--out", tmp_path / "out")
    first = ct.Result.load(tmp_path / "out").evaluate()
    config.write_text(RUN.replace("rounds = 6", "rounds = 2"))
    assert "already holds a run" in fails(capsys, "run", config, "--out", tmp_path / "out")
    assert "rounds = 6" in (tmp_path / "out" / "config.toml").read_text()  # the run there keeps its own file
    assert "2 rounds" in prints(capsys, "run", config, "--out", tmp_path / "out", "--overwrite")
    assert not ct.Result.load(tmp_path / "out").evaluate().equals(first)


# Says when a checkpoint is written, and goes on when it is told to. SIGINT works also where the parent ignores it.
CHILD = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from coterie.cli import main
from coterie.training.run import Run
save = Run.save
def told(self):
    save(self)
    print("saved", self.done, flush=True)
    sys.stdin.readline()
Run.save = told
main()
"""


def _start(*arguments: object) -> subprocess.Popen[str]:
    """A command that waits at its first checkpoint."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", CHILD, *map(str, arguments)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, text=True, env=environment, **pipes)
    assert process.stdout is not None
    assert process.stdout.readline() == "saved 1\n", process.communicate()
    return process


def test_a_killed_run_resumes_to_the_same_bits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.toml"
    config.write_text(RUN)
    process = _start("run", config, "--out", tmp_path / "killed")
    process.kill()
    process.communicate()
    _, about = checkpoint.read(tmp_path / "killed" / checkpoint.FILE)
    assert about["done"] == 1
    prints(capsys, "resume", tmp_path / "killed")
    again = checkpoint.read(tmp_path / "killed" / checkpoint.FILE)[1]["history"]
    assert [row["round"] for row in again] == [1, 2, 3, 4, 5, 6]
    assert again[0] == about["history"][0]  # its seconds, too: the first round was not made again
    prints(capsys, "run", config, "--out", tmp_path / "whole")
    (a, _), (b, _) = (checkpoint.read(tmp_path / name / checkpoint.FILE) for name in ("killed", "whole"))
    assert a.keys() == b.keys()
    assert all(a[k].equal(b[k]) for k in a)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_ctrl_c_saves_the_round_and_says_how_to_go_on(number: signal.Signals, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(RUN)
    process = _start("run", config, "--out", tmp_path / "out")
    try:
        process.send_signal(number)
        out, err = process.communicate("\n")
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert "coterie resume" in re.sub(r"\s+", " ", out)
    assert "Traceback" not in err
    assert checkpoint.read(tmp_path / "out" / checkpoint.FILE)[1]["done"] == 1


def test_a_second_run_in_the_folder_touches_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.toml"
    config.write_text(RUN)
    process = _start("run", config, "--out", tmp_path / "out")
    try:
        before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
        config.write_text(RUN.replace("rounds = 6", "rounds = 2"))
        for command in (("run", config, "--out", tmp_path / "out", "--overwrite"), ("resume", tmp_path / "out")):
            assert f"in use by another run (process {process.pid})" in fails(capsys, *command)
        assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    finally:
        process.kill()
        process.communicate()


def test_a_full_disk_is_one_sentence_and_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(RUN)

    def full(tensors: Any, name: str, about: Any) -> None:
        raise RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(checkpoint, "save_file", full)
    told = fails(capsys, "run", config, "--out", tmp_path / "out")
    assert "checkpoint.safetensors cannot be written: the disk is full." in told


def test_version_datasets_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    runner = CliRunner()
    assert runner.invoke(cli.app, ["--version"]).output.strip() == f"coterie {ct.__version__}"
    listed = runner.invoke(cli.app, ["datasets"])
    assert listed.exit_code == 0
    assert "heart" in listed.output
    shown = runner.invoke(cli.app, ["--help"]).output
    assert all(name in shown for name in ("demo", "compare", "run", "resume", "datasets"))


def test_debug_shows_the_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTERIE_DEBUG", "0")  # what --debug sets is taken back
    with pytest.raises(ct.errors.ConfigError):
        cli.main(["resume", str(tmp_path), "--debug"])


def test_the_demo_shows_groups_on_a_map_and_the_counter_examples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = prints(capsys, "demo", "--out", tmp_path / "out")
    assert "Recommendation: groups" in text
    for words in ("the plains", "the mountains", "the western valleys", "heart, 4 hospitals", "elections, by state"):
        assert words in text
    assert (tmp_path / "out" / "report.html").is_file()
    assert str(tmp_path / "out") in text
    for part in readme_output():
        assert part in plain(text), f"the README shows what the demo does not print: {part}"


def plain(text: str) -> str:
    """Words alone: digits may differ from machine to machine."""
    return " ".join(re.sub(r"[-+]?\d+(\.\d+)?", "#", text).split())


def readme_output() -> list[str]:
    """The parts of the demo's output that the README shows; a line … stands for what it leaves out."""
    page = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
    return [plain(part) for part in page.split("```text\n")[1].split("```")[0].split("\n…\n")]


def test_json_is_one_object_and_nothing_else(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = {}
    for command in ("compare", "advise"):  # the second is the former name, which says so on the other channel
        with pytest.raises(SystemExit) as stop:
            cli.main([command, str(table), "--client", "shop", "--target", "y", "--json"])
        assert stop.value.code == 0
        out = capsys.readouterr()
        assert ("is now coterie compare" in out.err) == (command == "advise")
        told[command] = json.loads(out.out)
    assert told["compare"]["recommendation"] == told["advise"]["recommendation"]
    assert told["compare"]["marks"]["together"]["c"] == "loses"
    assert set(told["compare"]["table"]) == {"alone", "together", "shrunk", "groups"}


def test_seeds_metric_and_splits_are_passed_on(
    table: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = ("--client", "shop", "--target", "y", "--json")
    asked: dict[str, Any] = {}

    def remember(split: Any, **options: Any) -> None:
        asked.update(options, splits=[split(0).x, split(1).x])
        raise ct.errors.ConfigError("stop here")

    monkeypatch.setattr("coterie.comparison.compare.compare", remember)
    options = ("--seeds", 2, "--metric", "auc", "--rounds", 7, "--algorithms", "fedavg")
    fails(capsys, "compare", table, *columns[:-1], *options)  # with --json the columns would be told on stderr
    assert (asked["seeds"], asked["metric"], asked["rounds"], asked["algorithms"]) == (2, "auc", 7, ["fedavg"])
    one, two = asked["splits"]
    assert not one.equal(two)


def test_help_names_algorithms_and_exit_codes() -> None:
    shown = re.sub(r"[│\s]+", " ", CliRunner().invoke(cli.app, ["compare", "--help"], env={"COLUMNS": "200"}).output)
    assert all(name in shown for name in ALGORITHMS)
    assert "130 interrupted" in shown
