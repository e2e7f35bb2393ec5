"""Worker: JoeyNMT's own `TrainManager`, on the same shape, tokens and loss.

    python -m train.joey TOKENS shuffled|bucketed fp32|bf16

JoeyNMT has no buckets: its token batches hold sentences of all lengths. `shuffled` is that. `bucketed` hands it a
corpus in an order of like lengths and turns `shuffle` off, which is the most that its settings leave.
Its configuration refuses half precision on a processor, but its trainer takes any autocast: bf16 is handed to that.
"""

from __future__ import annotations

import json
import random
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from joeynmt.config import parse_global_args
from joeynmt.prediction import prepare
from joeynmt.training import TrainManager
from turns import Turns

from train import tokens


class Clocked(TrainManager):
    """A step lasts from the beginning of one `_train_step` to that of the next: fetching and the update are in it."""

    turns: Turns
    last: tuple[int, int] | None = None

    def _train_step(self, batch: Any) -> Any:
        if self.last is not None:
            self.turns.done(*self.last)
        self.last = (int(batch.src_length.sum()) + int(batch.ntokens), batch.src.numel() + batch.trg.numel())
        return super()._train_step(batch)


def order(data: tokens.Tokens, bucketed: bool) -> list[int]:
    indices = list(range(len(data.source)))
    random.Random(1).shuffle(indices)
    if not bucketed:
        return indices
    longer = data.longer()
    indices.sort(key=lambda index: (longer[index], len(data.target[index]), len(data.source[index])))
    runs: list[list[int]] = []
    run: list[int] = []
    for index in indices:
        run.append(index)
        # JoeyNMT's own rule for closing a batch, so that its batches are these runs.
        if longer[index] * len(run) >= data.facts["batch_tokens"]:
            runs.append(run)
            run = []
    random.Random(1).shuffle(runs)
    return [index for part in [*runs, run] for index in part]


def write(data: tokens.Tokens, folder: Path, bucketed: bool) -> None:
    """Ids as words: JoeyNMT splits at spaces and looks them up, so the segmentation is the same."""
    folder.mkdir(parents=True, exist_ok=True)
    indices = order(data, bucketed)
    for name, side in (("src", data.source), ("trg", data.target)):
        lines = [" ".join(map(str, side[index][:-1])) for index in indices]
        (folder / f"train.{name}").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (folder / f"dev.{name}").write_text("\n".join(lines[:16]) + "\n", encoding="utf-8")
    words = ["<unk>", "<pad>", "<s>", "</s>", *(str(index) for index in range(3, data.facts["pieces"]))]
    (folder / "words").write_text("\n".join(words) + "\n", encoding="utf-8")


def configuration(data: tokens.Tokens, shape: dict[str, Any], folder: Path, bucketed: bool) -> dict[str, Any]:
    language = {"level": "word", "voc_file": str(folder / "words"), "lowercase": False, "max_length": 1000}
    stack = {
        "type": "transformer",
        "num_layers": shape["encoder_layers"],
        "num_heads": shape["encoder_attention_heads"],
        "hidden_size": shape["d_model"],
        "ff_size": shape["encoder_ffn_dim"],
        "dropout": shape["dropout"],
        "layer_norm": "post",
        "activation": shape["activation_function"],
        "embeddings": {"embedding_dim": shape["d_model"], "scale": True, "dropout": shape["dropout"]},
    }
    return {
        "name": "bench",
        "model_dir": str(folder / "model"),
        "use_cuda": False,
        "random_seed": 1,
        "data": {
            "train": str(folder / "train"),
            "dev": str(folder / "dev"),
            "dataset_type": "plain",
            "src": {"lang": "src", **language},
            "trg": {"lang": "trg", **language},
        },
        "training": {
            "optimizer": "adamw",
            "adam_betas": [0.9, 0.98],
            "learning_rate": 3e-4,
            "scheduling": "warmupinversesquareroot",
            "learning_rate_warmup": 800,
            "learning_rate_min": 1e-12,
            "normalization": "tokens",
            "loss": "crossentropy",
            "label_smoothing": data.facts["label_smoothing"],
            "clip_grad_norm": 1.0,
            "batch_size": data.facts["batch_tokens"],
            "batch_type": "token",
            "shuffle": not bucketed,
            "epochs": 1_000_000,
            "validation_freq": 1_000_000_000,
            "logging_freq": 1_000_000,
            "print_valid_sents": [],
        },
        "testing": {"beam_size": 1},
        "model": {
            "initializer": "xavier_uniform",
            "embed_initializer": "xavier_uniform",
            "tied_embeddings": True,
            "tied_softmax": True,
            "encoder": stack,
            "decoder": stack,
        },
    }


def main(folder: Path, settings: str, precision: str) -> None:
    turns = Turns()
    torch.set_num_threads(1)
    data = tokens.read(folder)
    shape = json.loads((folder / "engine" / "config.json").read_text(encoding="utf-8"))
    bucketed = settings == "bucketed"
    work = folder / f"joey-{settings}"
    write(data, work, bucketed)
    (work / "model").mkdir(exist_ok=True)
    arguments = parse_global_args(configuration(data, shape, work, bucketed), rank=0, mode="train")
    model, train_data, dev_data, _ = prepare(arguments, rank=0, mode="train")
    trainer = Clocked(
        model=model,
        model_dir=arguments.model_dir,
        device=arguments.device,
        n_gpu=0,
        rank=0,
        num_workers=0,
        autocast={"device_type": "cpu", "enabled": precision == "bf16", "dtype": torch.bfloat16},
        seed=1,
        train_args=arguments.train,
        dev_args=arguments.test,
    )
    trainer.turns = turns
    turns.ready(
        parameters=sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad),
        versions={name: version(name) for name in ("joeynmt", "torch")},
        settings=f"{arguments.train.batch_size} tokens, {settings}, {type(trainer.optimizer).__name__}",
    )
    trainer.train_and_validate(train_data=train_data, valid_data=dev_data)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
