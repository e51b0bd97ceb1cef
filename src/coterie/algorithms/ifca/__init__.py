"""IFCA in parts: `algorithm_2.py` is the paper's algorithm; the other files are composed around it by `composed.py`."""

from coterie.algorithms.ifca.cluster_models import IFCAState
from coterie.algorithms.ifca.composed import IFCA
from coterie.algorithms.ifca.early_stop import EarlyStop
from coterie.algorithms.ifca.split_start import FromSplit
from coterie.algorithms.ifca.warm_start import FromUpdates

__all__ = ["IFCA", "EarlyStop", "FromSplit", "FromUpdates", "IFCAState"]
