"""Data: embedded small real sets, loaders for larger ones, generators with known truth, and ways to deal rows to clients.

`heart`, `rain`, `elections` and `digits` need no file. The others are looked for in the folder named by the environment
variable COTERIE_DATA, then in the per-user cache; see `catalogue()` and `find_data`.
"""

from coterie.datasets.files import find_data
from coterie.datasets.images import cifar10, digits, femnist, mnist
from coterie.datasets.partition import by_group, dirichlet, iid, label_shards, pathological
from coterie.datasets.registry import DATASETS, catalogue
from coterie.datasets.synthetic import blobs, cluster_quadratics, linear_model
from coterie.datasets.tabular import (
    Elections,
    UserTokens,
    elections,
    har,
    heart,
    heart_frame,
    rain,
    rain_frame,
    rain_stations,
    train_tickets,
    user_tokens,
)

__all__ = [
    "DATASETS",
    "Elections",
    "UserTokens",
    "blobs",
    "by_group",
    "catalogue",
    "cifar10",
    "cluster_quadratics",
    "digits",
    "dirichlet",
    "elections",
    "femnist",
    "find_data",
    "har",
    "heart",
    "heart_frame",
    "iid",
    "label_shards",
    "linear_model",
    "mnist",
    "pathological",
    "rain",
    "rain_frame",
    "rain_stations",
    "train_tickets",
    "user_tokens",
]
