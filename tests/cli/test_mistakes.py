"""The mistakes of a new user at the command line: each ends with exit code 2 and one sentence that says what to change."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from coterie.cli import commands as cli
from coterie.cli.config import proceed, start
from coterie.errors import ConfigError, DataError
from coterie.privacy.receipt import Receipt
from coterie.report.runs import load
from reproductions.names import EXPERIMENTS

ROLES = "--client shop --target y"
MISTAKES = {
    "no table named": ("compare", "Missing argument 'TABLE': A CSV, Parquet or Excel file"),
    "no client column named": ("compare shops.csv --target y", "Missing option '--client': the column that says whose row"),
    "misspelt command": ("compre shops.csv", "No such command 'compre'. Did you mean 'compare'?"),
    "misspelt option": (f"compare shops.csv {ROLES} --sede 1", "No such option: --sede. Did you mean --seeds?"),
    "one dash": ("compare shops.csv -client shop", "No such option: -client. Did you mean --client?"),
    "an address": (f"compare https://example.org/shops.csv {ROLES}", "not an address. Download shops.csv first."),
    "not a table at all": (f"compare picture.csv {ROLES}", "picture.csv cannot be read as a table: it holds zero bytes"),
    "a column twice": (f"compare twice.csv {ROLES}", "Every column needs its own name; twice.csv has 'x' twice."),
    "clients of two rows": (f"compare tiny.csv {ROLES}", "At least 2 clients must have 4 rows to be scored by log_loss;"),
    "nothing held out": (
        f"compare shops.csv {ROLES} --test-fraction 0 --algorithms fedavg",
        "Trained methods are judged by test rows; these clients have none. Hold some out, for example with --test-fraction",
    ),
    "missing file": (f"compare shop.csv {ROLES}", "There is no file shop.csv. Did you mean shops.csv?"),
    "a folder instead of a file": (f"compare folder {ROLES}", "folder is neither CSV, Parquet nor Excel: give a file"),
    "wrong client column": ("compare shops.csv --client shopp --target y", "did you mean 'shop'? The columns are shop, x"),
    "wrong target column": ("compare shops.csv --client shop --target outcome", "no target column 'outcome'; the columns"),
    "wrong delimiter": (f"compare shops.csv {ROLES} --delimiter ;", "a single column, 'shop,x,w,y,colour'. If it holds"),
    "empty file": (f"compare empty.csv {ROLES}", "empty.csv is empty: it has neither columns nor rows."),
    "a header without rows": (f"compare header.csv {ROLES}", "The table has no rows (columns: shop, x, y)."),
    "one client": (f"compare one.csv {ROLES}", "needs at least two clients; column 'shop' holds only 'a'."),
    "a client column that names rows": ("compare ids.csv --client id --target y", "so it names rows, not clients."),
    "client and target the same": ("compare shops.csv --client shop --target shop", "are both column 'shop'."),
    "all-missing target": (f"compare missing.csv {ROLES}", "The target must not be missing; client 'a' has a NaN"),
    "all-missing features": (f"compare hollow.csv {ROLES}", "No usable feature is left (x: no value in any row;"),
    "a target that never changes": (f"compare constant.csv {ROLES}", "every value of the target 'y' is 1."),
    "text target with regression": (
        "compare shops.csv --client shop --target colour --kind regression",
        "A regression target must be numeric; column 'colour' holds",
    ),
    "unknown kind": (f"compare shops.csv {ROLES} --kind numbers", "--kind: 'numbers' is not one of 'classification'"),
    "unknown algorithm": (f"compare shops.csv {ROLES} --algorithms fedavgg", "algorithm 'fedavgg'. Did you mean 'fedavg'"),
    "unknown metric": (f"compare shops.csv {ROLES} --metric acuracy", "no metric 'acuracy'. Did you mean 'accuracy'?"),
    "a metric of another kind": (f"compare shops.csv {ROLES} --metric mse", "The metric 'mse' does not fit classification."),
    "negative rounds": (f"compare shops.csv {ROLES} --rounds -1", "--rounds must be greater than or equal to 1; got '-1'."),
    "words for a number": (f"compare shops.csv {ROLES} --seeds many", "--seeds must be a whole number; got 'many'."),
    "a file as output folder": (f"compare shops.csv {ROLES} --out shops.csv", "--out must be a folder; shops.csv is a file"),
    "a folder that cannot be written": (
        f"compare shops.csv {ROLES} --out shops.csv/deep",
        "--out must be a folder that can be written; shops.csv/deep cannot",
    ),
    "an output folder with a table in it": (
        f"compare mine/clients.csv {ROLES} --out mine",
        "must not hold other files under its names; mine has clients.csv. Name another folder with --out",
    ),
    "missing config": ("run absent.toml", "There is no config file absent.toml."),
    "a table as config": ("run shops.csv", "shops.csv is a table, not a config file. Compare its clients with"),
    "a folder as config": ("run folder", "folder is a folder, not a config file. Name a TOML file"),
    "a config in another encoding": ("run latin.toml", "A config file must be UTF-8; latin.toml is not."),
    "config with a wrong metric": ("run metric.toml", "task.metric 'acuracy' is unknown. Did you mean 'accuracy'?"),
    "a folder with another config": (
        "run good.toml --out mine",
        "mine/config.toml is another one. Name another folder with --out.",
    ),
    "broken config": ("run broken.toml", "broken.toml is not valid TOML:"),
    "config typo": ("run typo.toml", "Unknown key run.ruonds. Did you mean 'rounds'?"),
    "config with a wrong algorithm": ("run wrong.toml", "algorithm.name 'fedavgg' is unknown. Did you mean 'fedavg'?"),
    "typo in the settings of a comparison": ("run again.toml", "Unknown key compare.seed. Did you mean 'seeds'?"),
    "resume in a wrong folder": ("resume folder", "folder holds no run to resume"),
    "resume of nothing": ("resume nowhere", "There is no folder nowhere."),
    "report of a wrong folder": ("report folder", "folder holds neither a run nor a comparison."),
    "a table as page": ("report folder --out shops.csv", "--out must be a folder or a page ending in .html; got shops.csv."),
    "receipt of a wrong file": ("privacy receipt shops.csv", "shops.csv is not a privacy receipt"),
    "receipt of a wrong folder": ("privacy receipt folder", "folder holds no receipt."),
}  # fmt: skip
"""The mistake: what was typed, and a part of the answer."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a good table and several bad ones."""
    folder = tmp_path_factory.mktemp("mistakes")
    rng = np.random.default_rng(0)
    good = pd.DataFrame({"shop": np.repeat(["a", "b", "c"], 20), "x": rng.normal(size=60), "w": rng.normal(size=60)})
    good["y"] = (good["x"] > 0).astype(int)
    good["colour"] = rng.choice(["red", "green", "blue"], 60)
    tables = {
        "shops": good,
        "header": good[["shop", "x", "y"]].head(0),
        "one": good[good["shop"] == "a"],
        "ids": good.assign(id=[f"row {i}" for i in range(60)]),
        "missing": good.assign(y=np.nan),
        "hollow": good.assign(x=np.nan, w=np.nan, colour=np.nan),
        "constant": good.assign(y=1),
        "tiny": good.groupby("shop").head(2),
        "twice": good[["shop", "x", "w", "y"]].set_axis(["shop", "x", "x", "y"], axis=1),
    }
    for name, table in tables.items():
        table.to_csv(folder / f"{name}.csv", index=False)
    (folder / "empty.csv").touch()
    (folder / "picture.csv").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(500))
    (folder / "latin.toml").write_bytes("[data]\nname = 'Köln'\n".encode("latin-1"))
    (folder / "folder").mkdir()
    (folder / "mine").mkdir()
    good.to_csv(folder / "mine" / "clients.csv", index=False)
    run = '[data]\nname = "heart"\n[algorithm]\nname = "fedavg"\n[run]\nrounds = 3\n'
    (folder / "broken.toml").write_text("[data\n")
    (folder / "typo.toml").write_text(run.replace("rounds", "ruonds"))
    (folder / "wrong.toml").write_text(run.replace("fedavg", "fedavgg"))
    (folder / "good.toml").write_text(run)
    (folder / "mine" / "config.toml").write_text(run.replace("fedavg", "ifca"))
    (folder / "metric.toml").write_text(f'{run}[task]\nmetric = "acuracy"\n')
    (folder / "again.toml").write_text('[data]\nname = "heart"\n[compare]\nseed = 3\n')
    return folder


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_sentence_and_code_2(
    mistake: str, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    typed, answer = MISTAKES[mistake]
    monkeypatch.chdir(place)
    before = sorted(os.listdir())
    with pytest.raises(SystemExit) as stop:
        cli.main(typed.split())
    text = capsys.readouterr().err.strip()
    assert stop.value.code == 2
    assert answer in text
    assert len(text.splitlines()) == 1
    assert text[-1] in ".?"
    assert "Traceback" not in text
    assert sorted(os.listdir()) == before  # nothing was begun


def test_a_command_without_arguments_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main([])
    found = capsys.readouterr()
    assert stop.value.code == 2
    assert "compare" in found.out
    assert not found.err.strip()


@pytest.mark.parametrize("typed", ["-h", "compare -h", "privacy receipt -h"])
def test_a_short_option_shows_help(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(typed.split())
    assert stop.value.code == 0
    assert "Usage: coterie" in capsys.readouterr().out


def test_names_of_experiments_are_whole_in_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reproductions.command.console", Console(width=40))
    with pytest.raises(SystemExit) as stop:
        cli.main(["reproduce", "--list"])
    assert stop.value.code == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(EXPERIMENTS)


def test_a_run_refused_for_its_data_or_its_rounds_leaves_no_run_to_resume(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("shop,x,y\na,1,0\n")
    file, out = tmp_path / "run.toml", tmp_path / "out"
    for rounds, why in ((2, "at least two clients"), (10**12, "rounds")):
        file.write_text(
            '[data]\npath = "t.csv"\nclient = "shop"\ntarget = "y"\n[algorithm]\nname = "fedavg"\n'
            f"[run]\nrounds = {rounds}\n"
        )
        with pytest.raises(ConfigError if rounds > 2 else DataError, match=why):
            start(file, out=out)
        assert not list(out.glob("*"))
    kept = out / "config.toml"  # the user's own file, in the folder of the run
    kept.write_text(file.read_text().replace(str(10**12), "2").replace("t.csv", "../t.csv"))
    with pytest.raises(DataError):
        start(kept, out=out)
    assert kept.is_file()


def test_a_damaged_or_foreign_origin_of_a_run_is_refused_without_quoting_it(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("")
    (tmp_path / "origin.txt").write_bytes(b"\xff\x00")
    with pytest.raises(ConfigError, match="it is damaged"):
        proceed(tmp_path)
    (tmp_path / "secret").write_text("a line of another file")
    (tmp_path / "origin.txt").unlink()
    (tmp_path / "origin.txt").symlink_to(tmp_path / "secret")
    with pytest.raises(ConfigError, match="symbolic link"):
        proceed(tmp_path)


@pytest.mark.parametrize(
    "told", ['{"a":' * 50_000, '{"table": {}, "gains": {}, "errors": {}, "groups": 1, "metric": 1}']
)
def test_json_files_of_others_end_in_one_sentence(told: str, tmp_path: Path) -> None:
    (tmp_path / "comparison.json").write_text(told)
    with pytest.raises(ConfigError, match="is damaged"):
        load(tmp_path)
    with pytest.raises(ConfigError, match=r"not JSON|not a privacy receipt"):
        Receipt.from_json(told)
