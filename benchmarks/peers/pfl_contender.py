"""pfl-research 0.6: federated averaging in its simulated backend."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from works import LR, Lap, Work


class Laps(TrainingProcessCallback):
    def __init__(self, lap: Lap) -> None:
        self.lap = lap

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.lap()
        return False, Metrics()


def run(work: Work, rounds: int, lap: Lap) -> None:
    torch.set_num_threads(1)
    np.random.seed(0)  # noqa: NPY002 - pfl draws from the global generator
    x, y = work.data()
    network = work.initial()
    network.loss = lambda x, y, eval=False: F.cross_entropy(network(x), y)
    network.metrics = lambda x, y, eval=False: {
        "loss": Weighted(F.cross_entropy(network(x), y).item() * len(y), len(y))
    }
    model = PyTorchModel(
        network,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
    )
    users = range(work.clients)
    data = FederatedDataset(
        lambda user: Dataset(raw_data=[x[user], y[user]]), get_user_sampler("minimize_reuse", users)
    )
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=10**9,
            train_cohort_size=work.clients,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=data, val_data=data),
        model,
        NNTrainHyperParams(
            local_batch_size=work.batch,
            local_num_epochs=1 if work.batch else work.steps,
            local_learning_rate=LR,
        ),
        callbacks=[Laps(lap)],
        send_metrics_to_platform=False,
    )
