"""The public names of `ct.datasets` and where each lives. `coterie.base.lazy` reads this file as a table."""

from coterie.datasets.files import find_data as find_data
from coterie.datasets.images import cifar10 as cifar10
from coterie.datasets.images import digits as digits
from coterie.datasets.images import femnist as femnist
from coterie.datasets.images import mnist as mnist
from coterie.datasets.partition import by_group as by_group
from coterie.datasets.partition import dirichlet as dirichlet
from coterie.datasets.partition import iid as iid
from coterie.datasets.partition import label_shards as label_shards
from coterie.datasets.partition import pathological as pathological
from coterie.datasets.registry import DATASETS as DATASETS
from coterie.datasets.registry import catalogue as catalogue
from coterie.datasets.synthetic import blobs as blobs
from coterie.datasets.synthetic import cluster_quadratics as cluster_quadratics
from coterie.datasets.synthetic import linear_model as linear_model
from coterie.datasets.tabular import Elections as Elections
from coterie.datasets.tabular import UserTokens as UserTokens
from coterie.datasets.tabular import elections as elections
from coterie.datasets.tabular import har as har
from coterie.datasets.tabular import heart as heart
from coterie.datasets.tabular import heart_frame as heart_frame
from coterie.datasets.tabular import rain as rain
from coterie.datasets.tabular import rain_frame as rain_frame
from coterie.datasets.tabular import rain_stations as rain_stations
from coterie.datasets.tabular import train_tickets as train_tickets
from coterie.datasets.tabular import user_tokens as user_tokens
