"""The catalogue lists every loader."""

from __future__ import annotations

from coterie import datasets
from coterie.datasets import DATASETS, catalogue
from coterie.datasets.files import FILES


def test_the_catalogue_is_complete() -> None:
    table = catalogue()
    assert list(table.index) == list(DATASETS)
    assert list(table.columns) == ["description", "licence", "source", "file", "MB", "available"]
    assert {e.file for e in DATASETS.values() if e.file} == set(FILES)
    for name in DATASETS:
        assert hasattr(datasets, "user_tokens" if name.startswith("user_tokens") else name)
    assert table.loc[["heart", "elections", "digits", "linear_model"], "available"].all()
    assert ((table["MB"] > 0) == (table["file"] != "built in")).all()


def test_public_names_exist() -> None:
    for name in datasets.__all__:
        assert getattr(datasets, name) is not None
