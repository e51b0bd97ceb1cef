"""Image federations: the papers' numbers of clients and samples, and no picture both trained and tested on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from coterie.data.federation import Federation
from coterie.datasets import cifar10, digits, femnist, mnist
from coterie.errors import ConfigError, DataError


def rows_of(fed: Federation, client: int, turns: int = 0) -> tuple[set[bytes], set[bytes]]:
    """The client's training and test pictures as bytes, turned back by 90° · turns."""
    i = fed.index(client)
    start, middle, end = fed.offsets[i], fed.offsets[i] + fed.n_train[i], fed.offsets[i + 1]
    side = round((fed.n_features) ** 0.5)

    def keys(rows: torch.Tensor) -> set[bytes]:
        return {np.rot90(r.reshape(side, side), -turns).tobytes() for r in rows.numpy()}

    return keys(fed.x[start:middle]), keys(fed.x[middle:end])


def test_rotated_digits_have_true_clusters_and_share_nothing_between_training_and_test() -> None:
    fed = digits(transform="rotate", clusters=4, clients=40, seed=0)
    assert len(fed) == 40
    assert fed.clusters is not None
    assert np.bincount(fed.clusters).tolist() == [10, 10, 10, 10]
    assert fed.x.dtype == torch.uint8
    assert fed.x.shape[1:] == (64,)
    sets = [rows_of(fed, c, int(fed.clusters[c])) for c in range(40)]
    trained, tested = set().union(*(s[0] for s in sets)), set().union(*(s[1] for s in sets))
    assert not trained & tested
    first = [c for c in range(40) if fed.clusters[c] == 0]
    for part in (0, 1):  # disjoint inside a cluster
        assert sum(len(sets[c][part]) for c in first) == len(set().union(*(sets[c][part] for c in first)))
    assert sum(len(sets[c][0]) for c in first) == 1340  # 1348 training pictures, ten clients


def test_rotation_and_label_shift_do_what_they_say() -> None:
    plain = digits(transform=None, clusters=1, clients=8, samples=20, flatten=False)
    assert plain.x.shape[1:] == (1, 8, 8)
    assert plain.clusters is not None
    assert not plain.clusters.any()
    turned = digits(transform="rotate", clusters=1, clients=8, samples=20, flatten=False)
    assert torch.equal(plain.x, turned.x)  # cluster 0 is upright
    one = digits(transform="shift_labels", clusters=4, clients=8, samples=20)
    two = digits(transform="rotate", clusters=4, clients=8, samples=20)
    assert one.clusters is not None
    shift = torch.from_numpy(np.repeat(one.clusters, one.n_samples))
    assert torch.equal((two.y + shift) % 10, one.y)
    upright = one.x.reshape(-1, 8, 8)
    for k in range(4):
        mine = shift == k
        assert torch.equal(torch.rot90(upright[mine], k, (1, 2)), two.x.reshape(-1, 8, 8)[mine])


def test_digits_are_reproducible() -> None:
    assert torch.equal(digits(seed=3).x, digits(seed=3).x)
    assert not torch.equal(digits(seed=3).x, digits(seed=4).x)


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(DataError, match="at most 4 different clusters; got clusters=5"):
        digits(clusters=5)
    with pytest.raises(DataError, match="at most 2 different clusters"):
        digits(clusters=3, angle=180)
    with pytest.raises(DataError, match="at most 1 different clusters"):
        digits(transform=None, clusters=2)
    with pytest.raises(DataError, match="at most 10 different"):
        digits(transform="shift_labels", clusters=11)
    with pytest.raises(DataError, match="Every cluster needs a client"):
        digits(clusters=4, clients=3)
    with pytest.raises(DataError, match="angle must be"):
        digits(angle=45)
    with pytest.raises(ConfigError, match="transform must be"):
        digits(transform="mirror")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="1 to 1348 samples"):
        digits(samples=2000)
    with pytest.raises(DataError, match="test_fraction"):
        digits(test_fraction=0.0)


def test_mnist_as_in_ifca(data_folder: Path) -> None:
    fed = mnist(transform="rotate", clusters=4, clients=1200, samples=200, seed=0)
    assert fed.x.shape == (1200 * 233, 1, 28, 28)
    assert fed.x.dtype == torch.uint8
    assert set(fed.n_train) == {200}
    assert fed.clusters is not None
    label_counts = np.zeros(10, int)
    ink = 0
    for c in np.flatnonzero(fed.clusters == 2):
        start = fed.offsets[c]
        label_counts += np.bincount(fed.y[start : start + 200].numpy(), minlength=10)
        ink += int(fed.x[start : start + 200].sum(dtype=torch.int64))
    with np.load(data_folder / "mnist.npz") as arrays:  # every training picture once in every cluster
        np.testing.assert_array_equal(label_counts, np.bincount(arrays["y_train"]))
        assert ink == arrays["x_train"].sum(dtype=np.int64)


def test_mnist_disjoint_as_in_werner(data_folder: Path) -> None:
    fed = mnist(transform="shift_labels", clients=300, disjoint=True, flatten=True)
    assert fed.x.shape[1:] == (784,)
    assert fed.clusters is not None
    assert np.bincount(fed.clusters).tolist() == [75] * 4
    pictures = [rows_of(fed, c)[0] for c in range(300)]
    assert len(set().union(*pictures)) == sum(map(len, pictures))
    with pytest.raises(DataError, match="disjoint needs clients"):
        mnist(clients=301, disjoint=True)


def test_mnist_by_writer(data_folder: Path) -> None:
    fed = mnist(transform=None, clusters=1, by_writer=True)
    assert len(fed) == 539
    assert fed.n_samples.sum() == 60_000
    some = mnist(transform="rotate", clusters=4, clients=20, samples=50, by_writer=True)
    assert len(some) == 20
    assert some.n_samples.max() == 50


def test_femnist_by_writer_with_the_leaf_split(data_folder: Path) -> None:
    fed = femnist()
    assert len(fed) == 294  # of the 300 complete writers those with ten pictures
    assert fed.n_test.min() >= 1
    assert len(fed.classes or ()) == 62
    with np.load(data_folder / "femnist.npz") as arrays:
        writer = int(np.flatnonzero(arrays["writer_name"] == fed.clients[5])[0])
        mine = arrays["writer"] == writer
        test = arrays["x"][mine & (arrays["leaf_split_test"] == 1)]
        labels = arrays["y"][mine & (arrays["leaf_split_test"] == 1)]
    x, y = fed.test(fed.clients[5])
    np.testing.assert_allclose(x[:, 0].numpy(), test / np.float32(255), rtol=1e-6)
    np.testing.assert_array_equal(y.numpy(), labels)
    few = femnist(clients=10, split="seed", invert=True, flatten=True)
    assert len(few) == 10
    assert few.x.float().mean() < 64  # ink on black
    with pytest.raises(DataError, match="only 294 such writers"):
        femnist(clients=1000)


def test_cifar_is_channels_first_and_turned_by_half(data_folder: Path) -> None:
    fed = cifar10()
    assert fed.x.shape == (40 * 600, 3, 32, 32)
    with np.load(data_folder / "cifar10.npz") as arrays:
        originals = {p.tobytes(): i for i, p in enumerate(arrays["x_train"])}
        labels = arrays["y_train"]
    for client, turns in ((0, 0), (1, 2)):
        x, y = fed.x[fed.offsets[client]].numpy(), int(fed.y[fed.offsets[client]])
        upright = np.ascontiguousarray(np.rot90(x, turns, axes=(1, 2)).transpose(1, 2, 0))
        assert labels[originals[upright.tobytes()]] == y
