"""The code of the estimation page runs as printed."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "estimation.md"


def test_code_blocks_run():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.S)
    assert len(blocks) >= 6
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
