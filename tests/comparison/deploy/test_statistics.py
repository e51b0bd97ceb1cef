"""More rows without the first ones: what is learned again is what all rows together give."""

import numpy as np
import pandas as pd
import pytest

from coterie.comparison.deploy.model import TableModel
from coterie.comparison.exact.candidates.rows import Rows
from coterie.comparison.exact.candidates.shrunk import Shrunk
from coterie.errors import DataError
from tests.comparison.deploy.test_model import M, compared, world


@pytest.fixture(scope="module")
def model() -> TableModel:
    return compared(world(n=12), family="linear").model


def test_an_update_gives_what_shrunk_learns_from_all_rows(model: TableModel) -> None:
    """New rows of known clients and of three new ones, against one fit to all rows on the first rows' scales."""
    old, new = world(n=12), world(seed=3, clients=range(110, 117), n=9)
    again = model.update(new)
    both = pd.concat([old, new], ignore_index=True)
    scaling = model.stack.parts["shrunk"].model.scaling
    X, y = model.coding.inputs(both), both["y"].to_numpy().copy()
    y[: len(old)] = old["y"].to_numpy(np.float32)  # as tables are read
    rows = Rows(scaling.columns(X), scaling.target(y[:, None]), both["who"].to_numpy() - 100, M + 3, False)
    whole = Shrunk().fit(rows, np.random.default_rng(0))
    fit = again.stack.parts["shrunk"].model.fit
    np.testing.assert_allclose(fit.client_coefficients(), whole.coef, atol=1e-6)
    np.testing.assert_allclose(fit.population, whole.population, atol=1e-6)
    assert again.about["rows"] == len(both)
    assert set(again.table(new)["basis"]) == {"own"}


def test_two_updates_are_one(model: TableModel) -> None:
    new = world(seed=3, clients=range(110, 117), n=8)
    first, second = new.iloc[::2], new.iloc[1::2]
    at_once, in_turn = model.update(new), model.update(first).update(second)
    np.testing.assert_allclose(in_turn.stack.parts["shrunk"].outputs(model.coding.inputs(new), at_once.owners(new)),
                               at_once.stack.parts["shrunk"].outputs(model.coding.inputs(new), at_once.owners(new)),
                               atol=1e-6)  # fmt: skip


@pytest.mark.parametrize("classes", [False, True])
def test_the_first_rows_of_a_new_client_help_and_change_no_other(classes: bool) -> None:
    """Newcomers with slopes that no column foretells."""
    rng = np.random.default_rng(1)

    def rows(clients: range, n: int) -> pd.DataFrame:
        who = np.repeat(list(clients), n)
        x = rng.normal(size=len(who))
        y = 3 * np.random.default_rng(2).normal(size=100)[who] * x + 0.5 * rng.normal(size=len(who))
        return pd.DataFrame({"who": who, "x": x, "y": np.where(y > 0, "up", "down") if classes else y})

    model = compared(rows(range(20), 25), family="linear").model
    first, later = rows(range(20, 40), 12), rows(range(20, 40), 50)
    adapted = model.adapt(first)

    def loss(used: TableModel) -> float:
        made = used.predict(later)
        return float((made != later["y"]).mean() if classes else ((made - later["y"]) ** 2).mean())

    assert loss(adapted) < 0.55 * loss(model)
    known = rows(range(20), 3)
    np.testing.assert_array_equal(adapted.outputs(known), model.outputs(known))


def test_placed_newcomers_learn_from_where_their_columns_place_them() -> None:
    """A column explains half of what differs between clients; the first rows tell the rest, step by step."""
    own = np.random.default_rng(3).normal(size=1000)

    def rows(seed: int, clients: range, n: int) -> pd.DataFrame:
        frame = world(seed, clients=clients, n=n).dropna()
        return frame.assign(y=frame["y"] + own[frame["who"]] * frame["x"])

    model = compared(rows(0, range(100, 130), 30), family="linear").model
    first, second, later = (rows(s, range(130, 150), n) for s, n in ((4, 6), (5, 12), (6, 30)))
    steps = [model, model.adapt(first), model.adapt(first).adapt(second)]
    error = [float(((m.predict(later) - later["y"]) ** 2).mean()) for m in steps]
    at_once = model.adapt(pd.concat([first, second])).stack.parts["placed"].part.model.fit
    np.testing.assert_allclose(steps[2].stack.parts["placed"].part.model.fit.coef, at_once.coef, atol=1e-9)
    assert error[0] < 0.5 * later["y"].var()
    assert error[1] < 0.8 * error[0]
    assert error[2] < 0.95 * error[1]


def test_rows_to_learn_from_need_their_targets(model: TableModel) -> None:
    with pytest.raises(DataError, match="needs their target 'y'"):
        model.update(world().drop(columns="y"))
    with pytest.raises(DataError, match="some have none"):
        model.update(world().assign(y=np.nan))
    with pytest.raises(DataError, match="Every row needs its client"):
        model.update(world().astype({"who": object}).assign(who=None))
