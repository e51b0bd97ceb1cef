"""What is wrong with a command itself (a missing or unknown option, a value of the wrong kind), in one sentence."""

from __future__ import annotations

import difflib
import re
from typing import Any

_WORDS = {  # parsers of typer since 0.21, and click before
    r"a valid integer, unable to parse string as an integer|.* is not a valid integer( range)?": "a whole number",
    r"a valid number, unable to parse string as a number|.* is not a valid float( range)?": "a number",
    r".* is not in the range x>=(\S+)": r"greater than or equal to \1",
    r".* is not in the range x>(\S+)": r"greater than \1",
    r".* is not in the range (\S+)": r"in the range \1",
}


def is_usage_error(error: Exception) -> bool:
    """Whether the command line's parser raised it (typer has its own parser, whose classes have no public name)."""
    return hasattr(error, "format_message")


def usage_sentence(error: Any, arguments: list[str]) -> str:
    """The parser's message with the option's purpose, its value, and where help is; "" when it has shown help."""
    message, option = error.format_message().strip(), _option(error)
    if error.ctx is None or not message:
        return _ended(message) if message else ""
    if message.startswith("Invalid value: "):  # a command's own refusal, a sentence already
        return _ended(message.removeprefix("Invalid value: "))
    if message.startswith("Invalid value for"):
        why = message.partition(": ")[2].removeprefix("Value error, ").removeprefix("Input should be ").rstrip(".")
        found = (match.expand(said) for rule, said in _WORDS.items() if (match := re.fullmatch(rule, why)))
        why = next(found, why)
        got = f"; got {_given(option, arguments)!r}" if _given(option, arguments) is not None else ""
        rule = f"{option}: {why}" if " is not " in why else f"{option} must be {why}{got}"
        return f"{rule}. {_help(error)}"
    if message.startswith("Missing") and getattr(error.param, "help", None):
        what = str(error.param.help).partition(". ")[0].rstrip(".")
        return f"{message.rstrip('.')}: {what[0].lower() + what[1:] if what[1:2].islower() else what}. {_help(error)}"
    if message.startswith("No such option"):
        return f"{_unknown(error, arguments) or _ended(message)} {_help(error)}"
    return f"{_ended(message)} {_help(error)}"


def _unknown(error: Any, arguments: list[str]) -> str:
    """The option as it was typed (the parser reads -client as -c) and the nearest one there is; "" when none is near."""
    known = [name for param in error.ctx.command.params for name in param.opts if name.startswith("--")]
    typed = [a.partition("=")[0] for a in arguments if re.match("--?[a-zA-Z]", a)]
    for wrong in (name for name in typed if name not in known):
        near = difflib.get_close_matches("--" + wrong.lstrip("-"), known, n=1)
        if near:
            return f"No such option: {wrong}. Did you mean {near[0]}?"
    return ""


def _option(error: Any) -> str:
    param = getattr(error, "param", None)
    names = [] if param is None else [o for o in (*param.opts, *param.secondary_opts) if o.startswith("--")]
    return names[0] if names else str(getattr(error, "param_hint", None) or getattr(param, "human_readable_name", "It"))


def _given(option: str, arguments: list[str]) -> str | None:
    """The value after an option."""
    for i, argument in enumerate(arguments):
        if argument == option and i + 1 < len(arguments):
            return arguments[i + 1]
        if argument.startswith(f"{option}="):
            return argument.removeprefix(f"{option}=")
    return None


def _help(error: Any) -> str:
    return f"See `{error.ctx.command_path} --help`."


def _ended(text: str) -> str:
    return text if text.endswith((".", "?", "!")) else f"{text}."
