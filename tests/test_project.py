"""A stranger who joins relies on this: one version everywhere, a changelog with releases, forms, a clean checkout."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

import coterie as ct
from coterie.cli import commands

ROOT = Path(__file__).parents[1]
RELEASE = re.compile(r"^## (\d+\.\d+\.\d+) \((\d{4}-\d\d-\d\d)\)$", flags=re.M)
KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def read(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def git(*words: str) -> subprocess.CompletedProcess[str]:
    if not (ROOT / ".git").exists():
        pytest.skip("this is not a checkout")
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)


def test_the_newest_release_has_one_number_and_one_date() -> None:
    number, date = RELEASE.findall(read("CHANGELOG.md"))[0]
    project = tomllib.loads(read("pyproject.toml"))
    cited = yaml.safe_load(read("CITATION.cff"))
    assert project["tool"]["hatch"]["version"]["fallback-version"] == number == cited["version"]
    assert str(cited["date-released"]) == date
    assert "version" not in project["project"], "the version comes from git"


def test_every_tag_has_its_section_of_the_changelog() -> None:
    told = {number for number, _ in RELEASE.findall(read("CHANGELOG.md"))}
    assert {tag.removeprefix("v") for tag in git("tag", "--list", "v*").stdout.split()} <= told


def test_the_changelog_has_releases_in_order_and_known_kinds_of_changes() -> None:
    text = read("CHANGELOG.md")
    sections = re.findall(r"^## (.*)$", text, flags=re.M)
    assert sections[0] == "Unreleased"
    assert all(RELEASE.fullmatch(f"## {section}") for section in sections[1:])
    dates = [date for _, date in RELEASE.findall(text)]
    assert dates == sorted(dates, reverse=True)
    assert set(re.findall(r"^### (.*)$", text, flags=re.M)) <= KINDS
    for part in re.split(r"^## ", text, flags=re.M)[1:]:
        kinds = re.findall(r"^### (.*)$", part, flags=re.M)
        assert len(kinds) == len(set(kinds)), "a release names each kind once"
        assert not re.search(r"^- ", part.partition("### ")[0], flags=re.M), "a line without its kind"


def test_the_version_is_the_installed_one_and_never_an_error() -> None:
    assert ct.__version__ == version("coterie")
    script = f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r}); import coterie; print(coterie.__version__)"
    bare = subprocess.run([sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=True)
    assert bare.stdout.strip() == "0+unknown"


def test_the_demo_leaves_the_checkout_clean() -> None:
    folder = inspect.signature(commands.demo).parameters["out"].default
    assert git("check-ignore", f"{folder}/report.html").returncode == 0


def test_the_readme_is_read_in_a_minute_and_begins_with_command_output_and_picture() -> None:
    text = read("README.md")
    assert 400 <= len(text.split()) <= 500
    first = text.partition("\n## ")[0]
    places = [first.index(part) for part in ("```\nmake demo\n```", "```text\n", "![")]
    assert places == sorted(places)
    picture = ROOT / re.findall(r"!\[[^\]]+\]\(([^)]+)\)", first)[0]
    assert picture.stat().st_size < 300_000
    assert "`make test`" in text


def test_the_public_ci_runs_the_script_of_every_other_place() -> None:
    jobs = yaml.safe_load(read(".github/workflows/ci.yml"))["jobs"]
    assert [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step] == [".ci/run"]
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111


@pytest.mark.parametrize("name", ["bug", "privacy", "question"])
def test_forms_for_issues_have_what_github_demands(name: str) -> None:
    form: dict[str, Any] = yaml.safe_load(read(f".github/ISSUE_TEMPLATE/{name}.yml"))
    assert form["name"]
    assert form["description"]
    asked = [part for part in form["body"] if part["type"] != "markdown"]
    assert {part["type"] for part in asked} <= {"textarea", "input", "dropdown", "checkboxes"}
    assert all(part["attributes"]["label"] for part in asked)
    assert len({part["id"] for part in asked}) == len(asked) > 0
    if name == "privacy":
        assert "SECURITY.md" in form["body"][0]["attributes"]["value"]
