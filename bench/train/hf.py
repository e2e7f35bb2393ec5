"""Worker: Hugging Face `Seq2SeqTrainer`, at its defaults, at the best settings we found, or with more than settings.

    python -m train.hf TOKENS defaults|best|buckets fp32|bf16 [SENTENCES A BATCH] [MULTIPLE OF LENGTHS]

Both train the engine that fedmt trains, from the same weights, with the same loss. `defaults` leaves
`Seq2SeqTrainingArguments` alone but for what the comparison needs: the processor, label smoothing, bf16 in its column,
and no checkpoints, which would only cost it time. `buckets` overrides its loader with batches like fedmt's: no setting
of its gives that, but a determined user could write it.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import (
    DataCollatorForSeq2Seq,
    MarianMTModel,
    PreTrainedTokenizerFast,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
)
from transformers.trainer_pt_utils import LengthGroupedSampler
from turns import Turns

from train import tokens


class Pairs(torch.utils.data.Dataset[dict[str, Any]]):
    def __init__(self, data: tokens.Tokens) -> None:
        self.items = [{"input_ids": s, "labels": t} for s, t in zip(data.source, data.target, strict=True)]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.items[index]


class Shuffled(LengthGroupedSampler):
    """`group_by_length` goes from long to short fifty batches at a time; here those come in random order.

    Nothing of an epoch's work changes, but a turn of some seconds then is like any other.
    """

    def __iter__(self) -> Iterator[int]:
        indices = list(super().__iter__())
        groups = [indices[at : at + self.batch_size] for at in range(0, len(indices), self.batch_size)]
        return iter([index for group in random.sample(groups[:-1], len(groups) - 1) + groups[-1:] for index in group])


class Grouped(Seq2SeqTrainer):
    """By the longer side: left alone, grouping looks at the source only, and pads the targets more."""

    lengths: list[int]

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:  # noqa: ARG002
        return Shuffled(self.args.train_batch_size, lengths=self.lengths)


class Bucketed(Grouped):
    """Batches of so many tokens a side, as fedmt makes them."""

    batch_tokens: int

    def get_train_dataloader(self) -> Any:
        order = sorted(
            range(len(self.lengths)), key=lambda at: (self.lengths[at], len(self.train_dataset[at]["labels"]))
        )
        groups: list[list[int]] = [[]]
        for at in order:
            if self.lengths[at] * (len(groups[-1]) + 1) > self.batch_tokens:
                groups.append([])
            groups[-1].append(at)
        random.shuffle(groups)
        loader = torch.utils.data.DataLoader(self.train_dataset, batch_sampler=groups, collate_fn=self.data_collator)
        return self.accelerator.prepare(loader)


class Counted:
    """The collator, and how many tokens the batches hold that it has made and that have not been trained on."""

    def __init__(self, collator: DataCollatorForSeq2Seq) -> None:
        self.collator = collator
        self.ahead: deque[tuple[int, int]] = deque()

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Tensor]:
        real = sum(len(item["input_ids"]) + len(item["labels"]) for item in features)
        batch: dict[str, Tensor] = self.collator(features)
        self.ahead.append((real, batch["input_ids"].numel() + batch["labels"].numel()))
        return batch


class Clock(TrainerCallback):
    def __init__(self, turns: Turns, counted: Counted) -> None:
        self.turns = turns
        self.counted = counted

    def on_step_end(self, *_: Any, **__: Any) -> None:
        # The loop fetches one batch ahead; counts come out in the order in which they went in.
        self.turns.done(*self.counted.ahead.popleft())


def smoothed(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    """The same loss in one call; the trainer's own label smoothing goes over the logits several times."""
    logits = outputs["logits"]
    total = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1, reduction="sum")
    return total / ((labels != -100).sum() if num_items_in_batch is None else num_items_in_batch)


def main(folder: Path, settings: str, precision: str, sentences: int = 128, multiple: int = 1) -> None:
    turns = Turns()
    data = tokens.read(folder)
    best = settings != "defaults"
    model = MarianMTModel.from_pretrained(folder / "engine", dtype=torch.float32)
    # The collator only pads; the ids are ready.
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel({str(index): index for index in range(data.facts["pieces"])}, "0")),
        pad_token=str(data.facts["pad"]),
        eos_token=str(data.facts["eos"]),
    )
    counted = Counted(
        DataCollatorForSeq2Seq(tokenizer, model=model, pad_to_multiple_of=multiple if multiple > 1 else None)
    )
    tuned: dict[str, Any] = {
        "per_device_train_batch_size": sentences,
        "train_sampling_strategy": "group_by_length",
        "optim": "adamw_torch_fused",
        "logging_strategy": "no",
        "remove_unused_columns": False,
        "dataloader_pin_memory": False,
    }
    arguments = Seq2SeqTrainingArguments(
        output_dir=str(folder / "hf"),
        use_cpu=True,
        bf16=precision == "bf16",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        num_train_epochs=10**6,
        label_smoothing_factor=0.0 if best else data.facts["label_smoothing"],
        **(tuned if best else {}),
    )
    kind = {"defaults": Seq2SeqTrainer, "best": Grouped, "buckets": Bucketed}[settings]
    trainer = kind(
        model=model,
        args=arguments,
        train_dataset=Pairs(data),
        data_collator=counted,
        compute_loss_func=smoothed if best else None,
        callbacks=[Clock(turns, counted)],
    )
    if best:
        trainer.lengths = data.longer()
        trainer.batch_tokens = data.facts["batch_tokens"]
    settled = f"{arguments.per_device_train_batch_size} sentences, {arguments.train_sampling_strategy}"
    if settings == "buckets":
        settled = f"{data.facts['batch_tokens']} tokens a side, buckets"
    turns.ready(
        parameters=sum(p.numel() for name, p in model.named_parameters() if "embed_positions" not in name),
        versions={name: version(name) for name in ("transformers", "accelerate", "torch")},
        settings=f"{settled}, {arguments.optim.value}, {model.config._attn_implementation}",
    )
    trainer.train()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], *map(int, sys.argv[4:]))
