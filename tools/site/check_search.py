"""Does the site's search find every public name? `python tools/site/check_search.py site` (part of `make docs`).

A name is found when a section's title holds it as a word, by the separator that the search itself uses.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from names import public

ALSO = ("Context", "Ask", "Up", "LocalSGD", "fit", "coterie compare", "coterie run", "coterie report")


def missing(index: dict, names: list[str]) -> list[str]:
    """The names of which a word is in no section's title, in all or one by one."""
    separator = re.compile(index["config"]["separator"])
    titles = [set(separator.split(_plain(one["title"]).lower())) for one in index["docs"]]
    return [name for name in names if not any(set(separator.split(name.lower())) <= words for words in titles)]


def _plain(title: str) -> str:
    return re.sub(r"<[^>]*>", "", title)


def main() -> None:
    index = json.loads((Path(sys.argv[1]) / "search" / "search_index.json").read_text("utf-8"))
    names = [one.shown for found in public().values() for one in found] + list(ALSO)
    lost = missing(index, names)
    if lost:
        sys.exit(f"The search does not find {len(lost)} of {len(names)} public names: {', '.join(lost)}.")
    print(f"The search finds all {len(names)} public names in {len(index['docs'])} sections.")


if __name__ == "__main__":
    main()
