"""One table of bad input: each is one sentence with options of the command line, exit code 2, no stack trace."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from coterie.cli import commands as cli

N = 60


def good() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "shop": np.repeat(["a", "b", "c"], N // 3),
            "x": rng.normal(size=N),
            "y": rng.integers(0, 2, N),
            "amount": rng.normal(size=N).round(3),
        }
    )


def changed(column: str, rows: object, value: object) -> pd.DataFrame:
    frame = good().astype({column: object})
    frame.loc[rows, column] = value  # type: ignore[call-overload]
    return frame


def of_one_class() -> pd.DataFrame:
    return changed("y", slice(0, 19), 1)


Made = Callable[[], pd.DataFrame | bytes]
TABLES: dict[str, tuple[Made, list[str], str]] = {
    "empty file": (lambda: b"", [], "is empty: it has neither columns nor rows"),
    "header only": (lambda: good().iloc[:0], [], "The table has no rows"),
    "ragged rows": (lambda: b"shop,x,y\na,1,2\nb,1,2,3,4\n", [], "cannot be read as a table"),
    "wrong encoding given": (lambda: "shop,x\nKöln,1\n".encode("latin-1"), ["--encoding", "utf-8"], "cannot be read"),
    "unknown encoding": (good, ["--encoding", "utf-99"], "encoding must be one that Python knows"),
    "long delimiter": (good, ["--delimiter", "::"], "delimiter must be one character"),
    "odd decimal": (good, ["--decimal", "x"], "decimal must be '.' or ','"),
    "blanks between columns": (lambda: b"shop x y\na 1 0\nb 2 1\n", [], "such as --delimiter space"),
    "no such client column": (good, ["--client", "shops"], "no client column 'shops'; did you mean 'shop'"),
    "no such target column": (good, ["--target", "z"], "no target column 'z'"),
    "no such feature": (good, ["--features", "q"], "no feature column 'q'"),
    "client is target": (good, ["--target", "shop"], "both column 'shop'"),
    "target as feature": (good, ["--features", "y,x"], "already the client, target or cluster"),
    "nothing left": (good, ["--exclude", "x,amount"], r"No feature column is left.*--features and --exclude"),
    "one client": (
        lambda: good().assign(shop="a"),
        [],
        r"at least two clients; column 'shop' holds only 'a'.*--client",
    ),
    "one row a client": (lambda: good().assign(shop=np.arange(N)), [], "Every client has a single row.*--client"),
    "missing client": (lambda: changed("shop", [3], None), [], r"'shop' is missing in 1 rows.*--drop-missing"),
    "missing target": (lambda: changed("y", [3, 9], None), [], r"NaN in column 'y' \(2 rows in all\).*--drop-missing"),
    "one class": (of_one_class, ["--one-class", "error"], r"client 'a' has only 1 .*--one-class allow"),
    "constant target": (lambda: good().assign(y=1), [], "Classification needs at least two classes"),
    "too large a client": (good, ["--min-rows", "50"], r"No client has 50 rows; the largest has 20.*--min-rows"),
    "text as regression": (
        lambda: good().assign(y=["yes", "no"] * 30),
        ["--kind", "regression"],
        r"column 'y' holds 'yes'.*--kind classification",
    ),
    "names as target": (
        lambda: good().assign(y=[f"n{i}" for i in range(N)]),
        [],
        r"too many for class.*--kind regression",
    ),
    "stray text in a feature": (lambda: changed("amount", [7], "n/k"), [], "holds the text 'n/k'.*--exclude amount"),
    "stray text in the target": (lambda: changed("amount", [7], "n/k"), ["--target", "amount"], "holds the text 'n/k'"),
    "infinite target": (lambda: changed("amount", [7], np.inf), ["--target", "amount"], "has an infinite value"),
    "infinite feature": (lambda: changed("amount", [7], np.inf), [], "'amount' holds an infinite value"),
    "date as feature": (
        lambda: good().assign(day="2020-01-01").astype({"day": "datetime64[ns]"}),
        ["--features", "x,day"],
        "--exclude day|No usable feature|holds dates",
    ),
    "senseless split": (good, ["--test-fraction", "1"], r"must be in \[0, 1\).*--test-fraction 0.25"),
    "true groups unknown": (good, ["--algorithms", "oracle"], "Name their column with --cluster"),
    "useless table": (lambda: good()[["shop", "y"]].assign(row=np.arange(N)), [], r"No usable feature is left \(row: "),
}


@pytest.mark.parametrize("name", TABLES)
def test_bad_input_is_one_sentence(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, options, words = TABLES[name]
    content = made()
    path = tmp_path / ("t.parquet" if name == "date as feature" else "t.csv")
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif path.suffix == ".parquet":
        content.to_parquet(path)
    else:
        content.to_csv(path, index=False)
    usual = {"--client": "shop", "--target": "y"}
    usual |= {"--seeds": "1", "--rounds": "1", "--algorithms": "local"}
    usual |= dict(zip(options[::2], options[1::2], strict=True))
    with pytest.raises(SystemExit) as stop:
        cli.main(["compare", str(path), *(word for pair in usual.items() for word in pair)])
    assert stop.value.code == 2
    text = capsys.readouterr().err.strip()
    assert re.search(words, text), text
    assert len(text.splitlines()) == 1
    assert "Traceback" not in text
    python = ("one_class=", "kind=", "exclude=", "features=", "drop_missing", "min_rows", "astype", "clusters=")
    assert not any(word in text for word in python), text


@pytest.mark.parametrize("name", ["t.xlsx", "t.xls", "t.docx", "folder.csv"])
def test_other_files_are_one_sentence(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / name).mkdir() if name.startswith("folder") else (tmp_path / name).write_bytes(b"PK")
    with pytest.raises(SystemExit) as stop:
        cli.main(["compare", str(tmp_path / name), "--client", "c", "--target", "t"])
    assert stop.value.code == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_a_run_names_the_keys_of_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    of_one_class().to_csv(tmp_path / "t.csv", index=False, sep=";")
    text = '[data]\npath="t.csv"\nclient="shop"\ntarget="y"\ndelimiter=";"\n[algorithm]\nname="local"\n'
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(SystemExit):
        cli.main(["run", str(tmp_path / "run.toml"), "--out", str(tmp_path / "out")])
    assert "one_class='allow'" in capsys.readouterr().err
    (tmp_path / "run.toml").write_text(text.replace('";"', "3"))
    with pytest.raises(SystemExit):
        cli.main(["run", str(tmp_path / "run.toml"), "--out", str(tmp_path / "out")])
    assert "data.delimiter must be a text" in capsys.readouterr().err


# ---- what is printed when all is well ----------------------------------------------------------------------------------


def shown(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    with pytest.raises(SystemExit) as stop:
        cli.main([str(a) for a in arguments])
    out = capsys.readouterr()
    assert stop.value.code == 0, out.err
    return out.out


def test_columns_are_shown_before_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = good().assign(row=np.arange(N), copy=lambda f: f["y"] * 2, day="2020-01-01")
    frame.to_csv(tmp_path / "t.csv", index=False, sep=";", decimal=",", encoding="utf-16")
    options = ("--seeds", 1, "--rounds", 1, "--algorithms", "local")
    text = shown(capsys, "compare", tmp_path / "t.csv", "--client", "shop", "--target", "y", *options)
    assert text.startswith("used: x, amount\n")
    assert "ignored: row (row numbers" in text
    assert "ignored: day (constant" in text
    assert "suspicious: copy (a copy of the target" in text
    assert text.index("suspicious") < text.index("local")
    assert "--features" in text


def test_rows_and_clients_are_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = changed("y", [0, 25], None)
    frame.loc[[1, 3, 5], "shop"] = "A"
    small = pd.DataFrame({"shop": "tiny", "x": [0.1], "y": [1], "amount": [0.2]})
    pd.concat([frame, small]).to_csv(tmp_path / "t.csv", index=False)
    common = (tmp_path / "t.csv", "--client", "shop", "--target", "y", "--drop-missing", "--one-class", "allow")
    text = shown(capsys, "compare", *common, "--min-rows", 2)
    assert "Note: Dropped 2 of 61 rows: 2 without 'y'." in text
    assert "'a', 'A'" in text.replace("'A', 'a'", "'a', 'A'")
    assert "--same-clients" in text
    assert " 4 clients" in " ".join(text.split())
    text = shown(capsys, "compare", *common, "--same-clients", "--min-rows", 5)
    assert "Left out 1 client with fewer than 5 rows: 'tiny'." in text
    assert " 3 clients" in " ".join(text.split())
