"""Every algorithm that follows a paper names it: title, authors, year and link."""

import importlib
import re

import pytest

from coterie.algorithms import ALGORITHMS

WITHOUT_PAPER = {"local", "finetuned", "oracle"}
CITED = re.compile(r'^"[^"]+" \([^()]+,\s(19|20)\d\d,\shttps?://\S+\)', re.MULTILINE)


@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - WITHOUT_PAPER))
def test_the_file_of_an_algorithm_cites_its_paper(name: str) -> None:
    module = importlib.import_module(ALGORITHMS[name].__module__)
    assert CITED.search(module.__doc__ or ""), module.__name__
