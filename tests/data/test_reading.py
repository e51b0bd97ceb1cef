"""Whatever the delimiter, the decimal sign and the encoding, the table read is the table written."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from coterie.data import reading
from coterie.data.federation import Federation
from coterie.data.reading import read_table
from coterie.errors import ConfigError, DataError

FRAME = pd.DataFrame(
    {"Stadt": ["Köln", "Zürich", "Ulm", "Genève"], "wert": [1.5, -2.25, 1000.0, 0.125], "n": [1, 2, 3, 4]}
)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "latin-1", "cp1252"])
@pytest.mark.parametrize(
    ("delimiter", "decimal"), [(",", "."), (";", ","), (";", "."), ("\t", "."), ("\t", ","), ("|", ".")]
)
def test_formats_are_recognised(delimiter: str, decimal: str, encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(FRAME.to_csv(index=False, sep=delimiter, decimal=decimal).encode(encoding))
    pd.testing.assert_frame_equal(read_table(path), FRAME)
    options = {"delimiter": delimiter, "decimal": decimal, "encoding": encoding}
    pd.testing.assert_frame_equal(read_table(path, **options), FRAME)


def test_what_is_given_is_believed(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes("a;b\n1,234;ä\n2,345;ö\n".encode("cp1252"))
    assert read_table(path)["a"].tolist() == ["1,234", "2,345"]  # thousands or decimals? not for us to say
    assert read_table(path, decimal=",")["a"].tolist() == [1.234, 2.345]
    assert read_table(path, encoding="cp437")["b"].tolist() != ["ä", "ö"]
    assert read_table(path, delimiter=",").columns.tolist() == ["a;b"]
    path.write_text("a b\n1 2\n")
    assert read_table(path).columns.tolist() == ["a b"]
    assert read_table(path, delimiter="space").columns.tolist() == ["a", "b"]


def test_an_umlaut_late_in_a_large_file_decides_the_encoding(tmp_path: Path) -> None:
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(("a,b\n" + "plain,1\n" * 200_000 + "Köln,2\n").encode("latin-1")))
    assert read_table(path)["a"].iloc[-1] == "Köln"


def test_bytes_that_windows_does_not_know_are_latin_1(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"a,b\nx\x81\xe4,1\n")
    assert read_table(path)["a"].tolist() == ["x\x81ä"]


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ('"1,5","a"\n', ["v", "w"]),  # a decimal comma inside quotes
        ("1.5,a,\n2.5,b,\n", ["v", "w"]),  # a delimiter at the end of every row
        ("first,1.5,a\nsecond,2.5,b\n", ["row names", "v", "w"]),  # R's write.table
    ],
)
def test_headers_and_rows_are_aligned(text: str, columns: list[str], tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("v,w\n" + text)
    frame = read_table(tmp_path / "t.csv")
    assert frame.columns.tolist() == columns
    assert frame["v"].iloc[0] == 1.5
    assert frame["w"].iloc[0] == "a"


def test_excel_names_its_delimiter_in_the_first_line(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("sep=|\na|b\n1,5|2\n")
    assert read_table(tmp_path / "t.csv").to_dict("list") == {"a": [1.5], "b": [2]}


def test_leading_zeros_stay(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("school,zip,zero,n\n030018,01001,0,10\n130018,90210,1,20\n,,2,\n")
    frame = read_table(tmp_path / "t.csv", client="school")
    assert frame["school"].tolist()[:2] == ["030018", "130018"]
    assert frame["zip"].tolist()[:2] == ["01001", "90210"]
    assert frame["zip"].isna().tolist() == [False, False, True]
    assert frame["zero"].tolist() == [0, 1, 2]
    assert frame["n"].tolist()[:2] == [10, 20]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (["7", "8"], [7, 8]),
        (["7", "8", ""], [7, 8]),  # a gap makes no 7.0
        (["7.0", "8.0"], [7, 8]),
        (["1e5", "2e5"], ["1e5", "2e5"]),
        (["2.50", "3.5"], ["2.50", "3.5"]),
        (["12345678901234567890", "1"], ["12345678901234567890", "1"]),
    ],
)
def test_clients_keep_their_names(written: list[str], read: list[object], tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("c,x\n" + "".join(f"{w},1\n" for w in written))
    assert read_table(tmp_path / "t.csv", client="c")["c"].tolist()[:2] == read


def test_reading_options_reach_from_csv(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"c": ["01", "02"] * 20, "x": rng.normal(size=40), "y": rng.normal(size=40)})
    frame.to_csv(tmp_path / "t.csv", index=False, sep=";", decimal=",", encoding="utf-16")
    options = {"client": "c", "target": "y"}
    fed = Federation.from_csv(tmp_path / "t.csv", **options)
    told = Federation.from_csv(tmp_path / "t.csv", delimiter=";", decimal=",", encoding="utf-16", **options)
    assert list(fed.clients) == ["01", "02"]
    np.testing.assert_array_equal(fed.x, told.x)
    np.testing.assert_allclose(fed.x, Federation.from_frame(frame, **options).x, rtol=1e-5)


def test_wrong_options_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ConfigError, match="delimiter must be one character"):
        read_table(tmp_path / "t.csv", delimiter="::")
    with pytest.raises(ConfigError, match=r"decimal must be '\.' or ','; got ';'"):
        read_table(tmp_path / "t.csv", decimal=";")
    with pytest.raises(ConfigError, match=r"encoding must be one that Python knows.*got 'utf-9'"):
        read_table(tmp_path / "t.csv", encoding="utf-9")


def test_excel_needs_a_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t.xlsx").write_bytes(b"PK")
    (tmp_path / "t.xls").write_bytes(b"")
    monkeypatch.setattr(reading.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"Excel file\. Save it as CSV, or `pip install openpyxl`"):
        read_table(tmp_path / "t.xlsx")
    with pytest.raises(DataError, match=r"old Excel file.*Save it as CSV"):
        read_table(tmp_path / "t.xls")


def test_excel_is_read_with_openpyxl(tmp_path: Path) -> None:
    pytest.importorskip("openpyxl")
    FRAME.assign(zip=["01001", "90210", "10001", "00501"]).to_excel(tmp_path / "t.xlsx", index=False)
    frame = read_table(tmp_path / "t.xlsx")
    pd.testing.assert_frame_equal(frame[list(FRAME)], FRAME)
    assert frame["zip"].tolist() == ["01001", "90210", "10001", "00501"]


def test_a_header_longer_than_what_is_looked_at_is_not_cut(tmp_path: Path) -> None:
    """Cut anywhere, its last name could be that of an earlier column."""
    names = ["c" * length for length in range(1, 600)]
    (tmp_path / "wide.csv").write_text(f"{','.join(names)}\n{','.join(['1'] * len(names))}\n")
    assert list(read_table(tmp_path / "wide.csv").columns) == names
