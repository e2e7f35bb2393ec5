"""Worker: Apple's `pfl`, federated averaging of a PyTorch model in one process; users train for no step.

python -m overhead.apple
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from turns import Turns

from overhead import engine


class Round(TrainingProcessCallback):
    def __init__(self, turns: Turns) -> None:
        self.turns = turns

    def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:  # noqa: ARG002
        if central_iteration == 0:
            self.turns.ready(
                parameters=engine.parameters(),
                versions={name: version(name) for name in ("pfl", "torch")},
                settings=f"in process, {torch.get_num_threads()} threads, nothing on disk",
            )
        else:
            self.turns.done(engine.SILOS)
        return False, Metrics()


def main() -> None:
    turns = Turns()
    model = engine.module()
    model.loss = lambda *_: None
    model.metrics = lambda *_: {}
    users = [f"silo{number}" for number in range(engine.SILOS)]
    data = FederatedDataset(
        lambda user: Dataset(raw_data=[np.zeros((1, 1), dtype=np.float32)], user_id=user),
        get_user_sampler("minimize_reuse", users),
    )
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=10**6,
            evaluation_frequency=10**7,
            train_cohort_size=engine.SILOS,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=data, val_data=data),
        model=PyTorchModel(
            model=model,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
        ),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=None, local_num_steps=0, local_learning_rate=0.1, local_batch_size=1
        ),
        callbacks=[Round(turns)],
        send_metrics_to_platform=False,
    )


if __name__ == "__main__":
    main()
