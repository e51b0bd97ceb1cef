"""docs/errata.md explains every code that files cite, cites only tests that exist, and carries nothing unused."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "errata.md"
NOTED = "## Noted, no code needed"
CODE = re.compile(
    r"(?<![\w-])(?:"
    r"E[CI]-\d+"  # errata of clustered learning and of incentives
    r"|[EH]\d\d"  # errata of estimation and of histograms; three digits are a linter's rule
    r"|T-[A-Z]\d+|E-[IF]\d+"  # theorems, experiments
    r"|(?:H[BX]|LB|EX|[A-EGHLMPX])-\d+[a-z]{0,2}"  # algorithms, baselines, measures, attacks, examples
    r"|A[4-7]"  # assumptions of the dissertation
    r")(?![\w])"
    r"'?"
)
CALLED = re.compile(r"[Ee]rrat(?:um|a)\s+`?([A-Z][\w-]*\d\w*)")  # whatever is called an erratum, of any family
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def codes(text: str) -> set[str]:
    """The codes in a text. Only M-2' has a prime; anywhere else it is a quotation mark."""
    return {m if m == "M-2'" else m.rstrip("'") for m in CODE.findall(text)} | set(CALLED.findall(text))


def rows(part: str) -> list[list[str]]:
    """The cells of every row of the tables in a part of the page, heads left out."""
    lines = [line for line in part.splitlines() if line.startswith("| ") and not line.startswith("| code |")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@cache
def cited() -> dict[str, list[str]]:
    """Every code and the files that cite it; the page and this test do not count."""
    found: dict[str, list[str]] = {}
    for folder in ("src", "reproductions", "tests", "docs", "examples"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {".py", ".md", ".toml", ".svg", ".css"} and path not in {PAGE, Path(__file__)}:
                for code in codes(path.read_text(encoding="utf-8")):
                    found.setdefault(code, []).append(str(path.relative_to(ROOT)))
    return found


@cache
def page() -> tuple[list[list[str]], list[list[str]]]:
    """Rows of the papers' tables, and of the section of things noted."""
    papers, noted = PAGE.read_text(encoding="utf-8").split(NOTED)
    return rows(papers), rows(noted)


def explained(table: list[list[str]]) -> list[str]:
    return [code.strip() for row in table for code in row[0].split(",")]


@cache
def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("(erratum EC-12), see M-2' and 'M-3'", {"EC-12", "M-2'", "M-3"}),
        ("L-1em, C-1r; T-F4 … T-F7", {"L-1em", "C-1r", "T-F4", "T-F7"}),
        ("errata EI-4, EI-5; (H06). E19, A4 with A = 2", {"EI-4", "EI-5", "H06", "E19", "A4"}),
        ("an erratum ZQ-7 of a new family", {"ZQ-7"}),
        ("noqa: E741, SHA-256, BSD-2, UTF-8, CC0, 1E-3, the E-step, W2, Python 3.11", set()),
    ],
)
def test_codes_are_recognised(text: str, found: set[str]) -> None:
    assert codes(text) == found


def test_every_code_is_explained() -> None:
    known = {code for table in page() for code in explained(table)}
    missing = {code: files for code, files in cited().items() if code not in known}
    assert not missing, f"docs/errata.md does not explain these codes; add a row for each: {missing}"
    assert len(cited()) > 50  # the search itself works


def test_every_explanation_is_used_once() -> None:
    papers, noted = (explained(table) for table in page())
    twice = {code for code in papers + noted if (papers + noted).count(code) > 1}
    assert not twice, f"explained twice in docs/errata.md: {twice}"
    unused = set(papers) - set(cited())
    assert not unused, f"no file cites {unused}; move them to the section 'Noted, no code needed' of docs/errata.md"
    assert not [code for code in papers + noted if codes(code) != {code}]  # each is a code by the rule above


def test_every_row_is_complete_and_names_a_test_that_exists() -> None:
    papers, noted = page()
    everywhere = {name: str(p.relative_to(ROOT)) for p in (ROOT / "tests").rglob("test_*.py") for name in functions(p)}
    problems = []
    for row in papers:
        if len(row) != 5 or not all(row):
            problems.append(f"{row[0]}: needs five filled cells")
        named = TEST.findall(row[-1])
        if not named and row[-1] != "none yet":
            problems.append(f"{row[0]}: name a test as `tests/file.py::test_name`, or write none yet")
        for path, name in named:
            if not (ROOT / path).is_file() or name not in functions(ROOT / path):
                problems.append(f"{row[0]}: {path}::{name} does not exist; now in {everywhere.get(name, 'no file')}")
    problems += [f"{row[0]}: needs three filled cells" for row in noted if len(row) != 3 or not all(row)]
    assert not problems, "\n".join(problems)
