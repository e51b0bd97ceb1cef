"""One paper, one file. The registry serves the command line and the conformance suite; users pass objects."""

from coterie.algorithms.fedavg import FedAvg
from coterie.algorithms.finetuned import FineTuned
from coterie.algorithms.ifca import IFCA
from coterie.algorithms.local import Local
from coterie.algorithms.oracle import Oracle

ALGORITHMS: dict[str, type] = {
    "local": Local,
    "fedavg": FedAvg,
    "finetuned": FineTuned,
    "oracle": Oracle,
    "ifca": IFCA,
}

__all__ = ["ALGORITHMS", "IFCA", "FedAvg", "FineTuned", "Local", "Oracle"]
