"""The pages of the reference: one section per public name, with its signature, from the docstrings."""

from __future__ import annotations

import importlib
import inspect
import re

from names import PAGES, Name, public

import coterie as ct
from coterie.cli import app

WITH_INHERITED = {
    "LocalSGD",
    "LocalAdam",
    "Privacy",
}  # classes whose methods come from a base that is not public itself


FIRST = "---\nsearch:\n  boost: 3\n---\n\n"  # who searches for a name wants the reference


def pages() -> dict[str, str]:
    """File → Markdown."""
    found = public()
    made = {f"reference/{page}.md": FIRST + _page(page, names) for page, names in found.items()}
    made["reference/index.md"] = _index(found)
    made["reference/commands.md"] = FIRST + commands()
    return made


def anchors() -> dict[str, str]:
    """What a page may call a name (`ct.IFCA`, and `IFCA` of a class) → where the reference shows it."""
    found = {one.shown: f"reference/{page}.md#{one.path}" for page, names in public().items() for one in names}
    classes = {name.removeprefix("ct."): at for name, at in found.items() if re.fullmatch(r"ct\.[A-Z]\w+", name)}
    return found | classes


def _page(page: str, names: list[Name]) -> str:
    title, _, modules = PAGES[page]
    parts = [f"# {title}\n"]
    for module in modules:
        thing = importlib.import_module(module) if "." in module else getattr(ct, module)
        parts.append(f"`{thing.__name__ if '.' in module else 'ct.' + module}`: {inspect.getdoc(thing)}\n")
    parts += [_section(one) for one in names]
    return "\n".join(parts)


def _section(one: Name) -> str:
    last = one.path.rpartition(".")[2]
    options = [f"heading: {one.shown!r}", f"toc_label: {one.shown!r}"]
    if last in WITH_INHERITED:
        options.append("inherited_members: true")
    if one.path.startswith("coterie.algorithms."):
        options.append("members: false")  # all have those of `ct.exchange.Algorithm`
    return "\n".join([f"::: {one.path}", "    options:", *(f"      {option}" for option in options), ""])


def _index(found: dict[str, list[Name]]) -> str:
    lines = [
        "# Reference\n",
        "`import coterie as ct`. Names are listed by page; the search above finds each of them.\n",
        "| page | names |",
        "|---|---|",
    ]
    for page, names in found.items():
        listed = ", ".join(f"[`{one.shown.removeprefix('ct.')}`]({page}.md#{one.path})" for one in names)
        lines.append(f"| [{PAGES[page][0]}]({page}.md) | {listed} |")
    return "\n".join(lines)


def commands() -> str:
    """The command line, from its own help."""
    import typer

    group = typer.main.get_command(app)
    lines = [
        "# Commands\n",
        "`coterie COMMAND --help` says the same. Exit codes: 0 done, 2 bad input, 130 interrupted.\n",
    ]
    _commands(group, ["coterie"], lines)
    return "\n".join(lines)


def _commands(command: object, words: list[str], lines: list[str]) -> None:
    inner = getattr(command, "commands", None)
    if inner is None or len(words) > 1:
        lines += [f"## `{' '.join(words)}`\n", inspect.cleandoc(command.help or ""), ""]  # type: ignore[attr-defined]
    if inner is not None:
        for name in sorted(inner):
            _commands(inner[name], [*words, name], lines)
        return
    rows = [_parameter(p) for p in command.params if p.name != "help" and not getattr(p, "hidden", False)]  # type: ignore[attr-defined]
    if rows:
        lines += ["| argument or option | default | meaning |", "|---|---|---|", *rows, ""]


def _parameter(parameter: object) -> str:
    option = parameter.param_type_name == "option"  # type: ignore[attr-defined]
    words = ", ".join([*parameter.opts, *parameter.secondary_opts]) if option else str(parameter.name).upper()  # type: ignore[attr-defined]
    usual = parameter.default  # type: ignore[attr-defined]
    shown = "required" if parameter.required else "" if usual in (None, False) or callable(usual) else f"`{usual}`"  # type: ignore[attr-defined]
    meaning = (getattr(parameter, "help", None) or "").replace("|", "\\|")
    return f"| `{words}` | {shown} | {meaning} |"
