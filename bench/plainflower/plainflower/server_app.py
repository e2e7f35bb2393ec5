"""The server: FedAvg, and its evaluation at the clients, which is a second exchange in each round."""

import time
from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from plainflower.task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    nodes = int(context.run_config["min-nodes"])
    turns = str(context.run_config["turns"])

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:  # noqa: ARG001
        # What the measurement needs, and no example has: say that a round is over, and wait for one's turn.
        if turns:
            Path(turns, f"done-{server_round}").touch()
            while not Path(turns, f"go-{server_round + 1}").exists():
                time.sleep(0.01)
        return None

    strategy = FedAvg(
        fraction_evaluate=float(context.run_config["fraction-evaluate"]),
        min_train_nodes=nodes,
        min_evaluate_nodes=nodes,
        min_available_nodes=nodes,
    )
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        num_rounds=int(context.run_config["num-server-rounds"]),
        evaluate_fn=evaluate,
    )
