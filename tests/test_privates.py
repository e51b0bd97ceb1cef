"""No module reads another's underscore names: what is used elsewhere is public."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import coterie

SOURCE = Path(coterie.__file__).parent

ALLOWED = {
    ("learning/module_json.py", "_modules"): "named_children() of torch leaves out a layer that is used a second time",
    ("learning/batched/networks.py", "_modules"): "the same",
    ("learning/batched/networks.py", "_foreach_add_"): "torch has no public in-place addition over a list of tensors",
    ("learning/batched/sgd.py", "_foreach_add_"): "the same",
    ("learning/batched/sgd.py", "_foreach_copy_"): "the same, for copies",
    ("learning/batched/gradients.py", "_foreach_sub"): "torch has no public subtraction over lists of tensors",
    (
        "learning/batched/chunks.py",
        "_C",
    ): "torch's public way from vmap to a batching rule takes as long as a small step",
    ("learning/batched/chunks.py", "_functorch"): "the same",
    ("learning/batched/chunks.py", "_unwrap_batched"): "the same",
    ("learning/batched/chunks.py", "_add_batch_dim"): "the same",
    ("learning/batched/forward_and_back.py", "_C"): "torch has no public test of whether a tensor is batched by vmap",
    ("learning/batched/forward_and_back.py", "_functorch"): "the same",
    ("comparison/deploy/forest.py", "_predictors"): "scikit-learn has no public way to the nodes of its boosted trees",
    ("comparison/deploy/forest.py", "_baseline_prediction"): "the same, for the value that the trees are added to",
    ("engines/error_location.py", "_version"): "torch has no public count of the writes into a tensor",
    ("learning/batched/network_traits.py", "_version"): "the same",
    (
        "learning/batched/network_traits.py",
        "_BatchNorm",
    ): "torch has no public name for batch normalisation of any dimension",
    ("learning/batched/network_traits.py", "_NormBase"): "the same, for all layers with running statistics",
    (
        "learning/batched/network_traits.py",
        "_python_dispatch",
    ): "torch has no public name for a mode that sees every operation",
    ("learning/task.py", "_ConvNd"): "the same, for convolutions",
    ("flower/worker.py", "_exit"): "a fork ends without its parent's exit handlers; Python has no other name for it",
    ("flower/roles/daemons.py", "_exit"): "Flower leaves threads running, which would keep the process; the same",
}


def private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def defined(tree: ast.Module) -> set[str]:
    """Private names that classes of this module define: methods, fields, and attributes set on self or cls."""
    names: set[str] = set()
    for owner in ast.walk(tree):
        if not isinstance(owner, ast.ClassDef):
            continue
        for node in ast.walk(owner):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                names.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and own(node.value):
                names.add(node.attr)
        for node in owner.body:
            targets = (
                node.targets
                if isinstance(node, ast.Assign)
                else [node.target]
                if isinstance(node, ast.AnnAssign)
                else []
            )
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def own(value: ast.expr) -> bool:
    """self, cls, super() and type(self)."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        return value.func.id == "super" or (value.func.id == "type" and all(own(a) for a in value.args))
    return isinstance(value, ast.Name) and value.id in ("self", "cls")


def trespasses(source: str) -> Iterator[tuple[int, str]]:
    """(line, name) of every private name that is imported, or read from what this module did not define."""
    tree = ast.parse(source)
    mine = defined(tree)
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            parts = [p for alias in node.names for p in alias.name.split(".")]
            parts += (node.module or "").split(".") if isinstance(node, ast.ImportFrom) else []
            yield from ((node.lineno, part) for part in parts if private(part))
        elif isinstance(node, ast.Attribute) and private(node.attr) and not own(node.value):
            imported = isinstance(node.value, ast.Name) and node.value.id in modules
            if imported or node.attr not in mine:
                yield node.lineno, node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "setattr"):
            name = node.args[1] if len(node.args) > 1 else None
            if isinstance(name, ast.Constant) and private(str(name.value)) and not own(node.args[0]):
                yield node.lineno, str(name.value)


def test_no_module_reads_the_private_names_of_another() -> None:
    found = {
        (file.relative_to(SOURCE).as_posix(), name, line)
        for file in SOURCE.rglob("*.py")
        for line, name in trespasses(file.read_text("utf-8"))
    }
    assert sorted(f for f in found if f[:2] not in ALLOWED) == []
    assert {f[:2] for f in found} >= set(ALLOWED), "an exception that is no longer needed"


@pytest.mark.parametrize(
    "source",
    [
        "from coterie.estimation.rates import _check_counts",
        "from coterie._hidden import shown",
        "import coterie._hidden",
        "def f(result): return result._live",
        "def f(run): return run._scores().mean()",
        "class A:\n    def f(self, run): return run.result._alone",
        "class A:\n    def f(self): return self.result._again",
        "from coterie.base import tree\nclass A:\n    _x: int = 0\n    def f(self): return tree._x",
        "def f(x): return getattr(x, '_stored', None)",
    ],
)
def test_a_trespass_is_found(source: str) -> None:
    assert list(trespasses(source))


@pytest.mark.parametrize(
    "source",
    [
        "class A:\n    _x: int = 0\n    def f(self, other: A): return self._x + other._x",
        "class A:\n    def __init__(self): self._y = 1\n\ndef f(a: A): return a._y",
        "class A(B):\n    def f(self): return super()._g() + type(self)._z",
        "_CONSTANT = 1\ndef f(x): return x.__class__.__name__, _CONSTANT",
    ],
)
def test_what_a_module_defines_it_may_read(source: str) -> None:
    assert not list(trespasses(source))
