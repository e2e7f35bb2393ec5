"""The client: takes the arrays into a model, and sends the model's back."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from plainflower.task import Net
from plainflower.task import train as train_fn

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    partition = int(context.node_config["partition-id"])
    loss = train_fn(model, 1e-4 * (partition + 1))
    arrays = ArrayRecord(model.state_dict())
    metrics = MetricRecord({"train_loss": loss, "num-examples": 100 + partition})
    return Message(content=RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    metrics = MetricRecord({"eval_loss": 0.0, "num-examples": 100 + int(context.node_config["partition-id"])})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=msg)
