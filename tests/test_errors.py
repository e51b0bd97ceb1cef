"""Every error that coterie raises on purpose belongs to one family, so that callers and commands can catch it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from coterie import errors

SOURCE = Path(__file__).parents[1] / "src" / "coterie"
BUILT_IN = {"ValueError", "TypeError", "RuntimeError", "Exception", "KeyError", "IndexError", "LookupError"} | {
    "ArithmeticError",
    "AssertionError",
    "AttributeError",
    "FileNotFoundError",
    "OSError",
}
ALLOWED = {
    "base/deprecated.py": {"AttributeError"},  # Python asks a class's __getattr__ for it
    "base/lazy.py": {"AttributeError"},  # Python asks a module's __getattr__ for it
    "learning/batches.py": {"RuntimeError"},  # torch's own convention for an operation without a derivative
    "learning/local_steps.py": {"RuntimeError"},  # the same
}


def raised(file: Path) -> dict[str, int]:
    """The exceptions a file raises by name, each with a line that does so."""
    found = {}
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Raise) and node.exc is not None:
            called = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            if isinstance(called, ast.Name):
                found[called.id] = node.lineno
    return found


@pytest.mark.parametrize("file", sorted(SOURCE.rglob("*.py")), ids=lambda f: f.relative_to(SOURCE).as_posix())
def test_no_file_raises_a_built_in_error(file: Path) -> None:
    name = file.relative_to(SOURCE).as_posix()
    bare = {error: line for error, line in raised(file).items() if error in BUILT_IN - ALLOWED.get(name, set())}
    assert not bare, f"{name} raises {bare}; use a class of coterie.errors"


@pytest.mark.parametrize("name", ALLOWED)
def test_every_exception_to_the_rule_is_needed(name: str) -> None:
    assert ALLOWED[name] <= raised(SOURCE / name).keys()


def test_the_search_finds_a_bare_error(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("def f():\n    raise ValueError('no')\n")
    assert raised(tmp_path / "bad.py") == {"ValueError": 2}


@pytest.mark.parametrize("error", [errors.DataError, errors.TaskError, errors.ConfigError, errors.TooFew])
def test_what_a_user_can_mend_is_a_value_error(error: type[Exception]) -> None:
    assert issubclass(error, errors.CoterieError)
    assert issubclass(error, ValueError)
