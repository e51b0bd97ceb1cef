"""What the reference does with docstrings: an algorithm's file speaks first, comments of fields are their docstrings."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

from griffe import Attribute, Class, Docstring, Extension, Object, ObjectNode

sys.path.append(str(Path(__file__).parent))
from markdown_text import linked, spaced


class Docstrings(Extension):
    """Docstrings as Markdown of the site."""

    def on_instance(self, *, node: ast.AST | ObjectNode, obj: Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = spaced(linked(obj.docstring.value))

    def on_class_instance(self, *, node: ast.AST | ObjectNode, cls: Class, **kwargs: Any) -> None:
        file = cls.parent
        if file is not None and file.path.startswith("coterie.algorithms.") and file.docstring and cls.docstring:
            cls.docstring.value = f"{file.docstring.value}\n\n{cls.docstring.value}"

    def on_attribute_instance(self, *, node: ast.AST | ObjectNode, attr: Attribute, **kwargs: Any) -> None:
        if attr.docstring is None and attr.lineno is not None and isinstance(attr.filepath, Path):
            line = attr.filepath.read_text("utf-8").splitlines()[attr.lineno - 1]
            _, _, comment = line.partition("  # ")
            if comment and not comment.startswith(("noqa", "type:")):
                attr.docstring = Docstring(comment[:1].upper() + comment[1:] + ".", parent=attr)
