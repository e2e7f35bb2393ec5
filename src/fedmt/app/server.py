"""The server's half of the shell, for `flwr run`. Runs stand in the folder that FEDMT_RUNS names, or in runs/."""

import os
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedmt.cli.live import Lines
from fedmt.federation.flower import GONE, Flower
from fedmt.sites import runs

app = ServerApp()


@app.main()  # type: ignore[untyped-decorator, unused-ignore]
def main(grid: Grid, context: Context) -> None:
    recipe = runs.parse(str(context.run_config["recipe"]))
    folder = Path(os.environ.get("FEDMT_RUNS", "runs")) / recipe.name
    runs.carry_out(Flower(grid), recipe, folder, resume=True, listen=Lines(print), patience=GONE)
