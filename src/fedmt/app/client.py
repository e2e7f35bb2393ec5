"""A site's half of the shell, for `flwr run`. The SuperNode is told the site's folder: --node-config 'folder="…"'."""

from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedmt.federation.flower import respond
from fedmt.sites import settings
from fedmt.sites.site import Answering

app = ClientApp()


@app.query()  # type: ignore[untyped-decorator, unused-ignore]
def query(message: Message, context: Context) -> Message:
    folder = Path(str(context.node_config["folder"]))
    return respond(message, context.run_config, Answering(folder, settings.read(folder), print))
