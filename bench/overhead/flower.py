"""Worker: Flower's simulation on Ray, `FedAvg` over the message API; clients load the engine and send it back.

python -m overhead.flower
"""

from __future__ import annotations

import os
from importlib.metadata import version
from typing import Any

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from turns import Turns

from overhead import engine

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()

client = ClientApp()
server = ServerApp()


@client.train()
def train(message: Message, context: Context) -> Message:  # noqa: ARG001
    model = engine.module()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    content = RecordDict(
        {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": 100, "loss": 0.0})}
    )
    return Message(content=content, reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:  # noqa: ARG001
    turns = Turns()

    def between(number: int, arrays: ArrayRecord) -> Any:  # noqa: ARG001
        if number == 1:
            turns.ready(
                parameters=engine.parameters(),
                versions={name: version(name) for name in ("flwr", "ray", "torch")},
                settings=f"one Ray actor a core ({CORES}), nothing on disk",
            )
        elif number > 1:
            turns.done(engine.SILOS)

    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=engine.SILOS, min_available_nodes=engine.SILOS)
    strategy.start(
        grid=grid, initial_arrays=ArrayRecord(engine.module().state_dict()), num_rounds=10**6, evaluate_fn=between
    )


if __name__ == "__main__":
    run_simulation(
        server_app=server,
        client_app=client,
        num_supernodes=engine.SILOS,
        backend_config={
            "init_args": {"num_cpus": CORES, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
