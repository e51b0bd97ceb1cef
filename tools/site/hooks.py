"""What the site is made of besides docs/: the README as its home, the reference, keys of configurations, experiments.

mkdocs calls the functions `on_…`. Files outside docs/ to which a page links are shown as pages of their own, so that the
same link works on GitHub and in the site.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

import configuration
import experiments
import reference
from markdown_text import spaced
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
LATER = (
    "scale.md",
    "deployment.md",
    "reproduction.md",
)  # pages that may not be written yet: no place in the navigation
OUTSIDE = "repository"  # where files outside docs/ are shown
LINK = re.compile(r"(\]\()([^)#:\s]+)((?:#[^)\s]*)?\))")
NAME = re.compile(r"(?<![\[`\w])`([A-Za-z][\w.]*)`(?![\]`])")
ANCHORS = reference.anchors()
CODE = re.compile(r"(```.*?```|`[^`\n]*`)", flags=re.S)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Pages that are to come have no place yet; pages that nobody gave a place stand at the end of the background."""
    config.nav = _written(config.nav)
    text = (ROOT / "mkdocs.yml").read_text("utf-8")
    unplaced = [page.name for page in sorted((ROOT / "docs").glob("*.md")) if page.name not in text]
    next(part["Background"] for part in config.nav if "Background" in part).extend(unplaced)
    return config


def _written(items: list[Any]) -> list[Any]:
    """The navigation without pages that are to come."""
    kept: list[Any] = []
    for item in items:
        if isinstance(item, dict):
            title, inner = next(iter(item.items()))
            if isinstance(inner, list):
                if inner := _written(inner):
                    kept.append({title: inner})
                continue
            if inner in LATER and not (ROOT / "docs" / inner).exists():
                continue
        kept.append(item)
    return kept


def on_files(files: Files, config: MkDocsConfig) -> Files:
    made = {"index.md": _home(), **reference.pages()}
    for path in sorted(_linked(files, made["index.md"])):
        made[_shown(path)] = _file(path)
    made |= experiments.drawn([f.content_string for f in files.documentation_pages()])
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    home = posixpath.dirname(page.file.src_uri)
    markdown = spaced(experiments.filled(configuration.filled(markdown)))
    if page.file.src_uri.startswith(OUTSIDE + "/"):
        return markdown

    def link(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", home, match[2]))
        if path.startswith("docs/") or not (ROOT / path).is_file():
            return match[0]
        return match[1] + posixpath.relpath(_shown(path), home or ".") + match[3]

    markdown = "".join(part if i % 2 else LINK.sub(link, part) for i, part in enumerate(CODE.split(markdown)))
    return markdown if home == "reference" else _named(markdown, home)


def _named(markdown: str, home: str) -> str:
    """Names of the reference in `code` become links to it."""

    def link(match: re.Match[str]) -> str:
        at = ANCHORS.get(match[1])
        return f"[{match[0]}]({posixpath.relpath(at, home or '.')})" if at else match[0]

    parts = re.split(r"(```.*?```|^#.*?$)", markdown, flags=re.S | re.M)  # neither in code nor in headings
    return "".join(part if i % 2 else NAME.sub(link, part) for i, part in enumerate(parts))


def _home() -> str:
    """The README, with its links as seen from docs/."""
    text = (ROOT / "README.md").read_text("utf-8")

    def link(match: re.Match[str]) -> str:
        return match[1] + posixpath.relpath(match[2], "docs") + match[3]

    return "".join(part if i % 2 else LINK.sub(link, part) for i, part in enumerate(CODE.split(text)))


def _linked(files: Files, home: str) -> set[str]:
    """The files outside docs/ that pages link to."""
    pages = [("", home), *((posixpath.dirname(f.src_uri), f.content_string) for f in files.documentation_pages())]
    found = set()
    for folder, text in pages:
        for match in LINK.finditer(CODE.sub("", text)):
            path = posixpath.normpath(posixpath.join("docs", folder, match[2]))
            if not path.startswith("docs/") and (ROOT / path).is_file():
                found.add(path)
    return found


def _shown(path: str) -> str:
    return f"{OUTSIDE}/{path.removesuffix('.md').replace('.', '_')}.md"


def _file(path: str) -> str:
    """A file of the repository as a page: Markdown as it is, everything else as code."""
    text = (ROOT / path).read_text("utf-8")
    if path.endswith(".md"):
        return text
    kind = {"py": "python", "toml": "toml"}.get(path.rpartition(".")[2], "text")
    return f"# {path}\n\n````{kind}\n{text}\n````\n"
