"""The outputs and pictures of docs/tutorial.md, made by running it: `make tutorial`, or with --check nothing is written.

Blocks of kind `console` hold commands (`$ …`) and what they print; blocks of kind `python` are one program, and a block of
kind `text` after one of them holds what it prints. Everything runs in an empty folder; pictures go to docs/figures.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import matplotlib as mpl

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "tutorial.md"
BLOCK = re.compile(r"```(console|python|text)\n(.*?)```", flags=re.S)
SHELL = {"COLUMNS": "80", "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}


def main(check: bool) -> None:
    told = PAGE.read_text("utf-8")
    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "tutorial"  # this and the date make the same file every time
    os.environ["SOURCE_DATE_EPOCH"] = "0"
    home = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        (Path(folder) / "examples").symlink_to(ROOT / "examples")
        made = rerun(told)
        os.chdir(home)
        if check:
            if plain(made) != plain(told):
                sys.exit("docs/tutorial.md does not show what its commands print. Run `make tutorial`.")
            return
        for picture in Path(folder).glob("*.svg"):
            shutil.copy(picture, ROOT / "docs" / "figures" / f"tutorial_{picture.name}")
    PAGE.write_text(made, "utf-8")
    print(f"{PAGE.relative_to(ROOT)}: {len(made.splitlines())} lines")


def rerun(page: str) -> str:
    """The page with every output replaced by today's."""
    names: dict[str, Any] = {}
    printed = io.StringIO()

    def block(match: re.Match[str]) -> str:
        kind, text = match[1], match[2]
        if kind == "console":
            lines = [line for line in text.splitlines() if line.startswith("$ ")]
            text = "".join(f"{line}\n{_run(line[2:])}" for line in lines)
        elif kind == "python":
            printed.seek(0)
            printed.truncate()
            with contextlib.redirect_stdout(printed):
                exec(text, names)
        else:
            text = _trimmed(printed.getvalue())
        return f"```{kind}\n{text}```"

    return BLOCK.sub(block, page)


def _run(command: str) -> str:
    words = shlex.split(command)
    words[0] = str(Path(sys.executable).with_name(words[0]))
    done = subprocess.run(words, env={**os.environ, **SHELL}, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"`{command}` ended with {done.returncode}: {done.stderr}")
    return _trimmed(done.stdout)


def _trimmed(text: str) -> str:
    """Without blank ends of lines, and without more than one blank line in a row."""
    return re.sub(r"\n{3,}", "\n\n", re.sub(r" +$", "", text, flags=re.M)).strip("\n") + "\n"


def plain(text: str) -> str:
    """Words alone: digits may differ from machine to machine, and columns with them."""
    return re.sub(r"\s+", " ", re.sub(r"[-+]?\d+(\.\d+)?", "#", text))


if __name__ == "__main__":
    main("--check" in sys.argv[1:])
