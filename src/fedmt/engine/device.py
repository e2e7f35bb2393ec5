"""Where and how an engine computes: device, precision and threads, each chosen with its reason."""

from __future__ import annotations

import ctypes
import functools
import math
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from fedmt.errors import CommandError
from fedmt.events import Choice
from fedmt.recipe import Compute

__all__ = ["Machine", "choose"]


@dataclass(frozen=True)
class Machine:
    device: torch.device
    precision: Literal["fp32", "bf16"]
    threads: int
    choices: tuple[Choice, ...] = ()


def choose(compute: Compute | None = None) -> Machine:
    """The recipe's word where it gives one; otherwise what this machine does best, and why."""
    compute = compute or Compute()
    device, device_reason = _device(compute.device)
    precision, precision_reason = _precision(compute.precision, device)
    threads, threads_reason = _threads(compute.threads)
    torch.set_num_threads(threads)
    if device.type == "cpu":
        _keep_freed_memory()
    return Machine(
        device,
        precision,
        threads,
        (
            Choice("device", device.type, device_reason),
            Choice("precision", precision, precision_reason),
            Choice("threads", str(threads), threads_reason),
        ),
    )


def _device(asked: str) -> tuple[torch.device, str]:
    if asked == "cuda" and not torch.cuda.is_available():
        raise CommandError(f"compute.device: cuda is asked for, and this machine has none; allowed here: {_known()}")
    if asked == "mps" and not torch.backends.mps.is_available():
        raise CommandError(f"compute.device: mps is asked for, and this machine has none; allowed here: {_known()}")
    if asked != "auto":
        return torch.device(asked), "the recipe says so"
    if torch.cuda.is_available():
        return torch.device("cuda"), f"found {torch.cuda.get_device_name()}"
    if torch.backends.mps.is_available():
        return torch.device("mps"), "found Apple's accelerator"
    return torch.device("cpu"), "no accelerator was found"


def _known() -> str:
    there = [("cuda", torch.cuda.is_available()), ("mps", torch.backends.mps.is_available())]
    return ", ".join(["auto", "cpu", *(name for name, found in there if found)])


def _precision(asked: str, device: torch.device) -> tuple[Literal["fp32", "bf16"], str]:
    if asked == "fp32":
        return "fp32", "the recipe says so"
    if asked == "bf16":
        return "bf16", "the recipe says so"
    if device.type == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return "bf16", "the accelerator multiplies bf16 in hardware"
        return "fp32", "the accelerator has no bf16"
    if device.type == "cpu" and _cpu_multiplies_bf16():
        return "bf16", "the processor multiplies bf16 in hardware"
    return "fp32", "the processor has no bf16 instructions" if device.type == "cpu" else "bf16 is not tried on mps"


@functools.cache
def _cpu_multiplies_bf16() -> bool:
    checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, check, lambda: False)() for check in checks)


def _threads(asked: int | Literal["auto"]) -> tuple[int, str]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    ours = f"{cores} cores are ours"
    if (share := _quota()) is not None and share < cores:
        cores, ours = share, f"this container may use {share} of {cores} cores"
    if asked != "auto":
        reason = "the recipe says so"
        return asked, reason if asked <= cores else f"{reason}, though {ours}: this will be slow"
    limit = os.environ.get("OMP_NUM_THREADS", "")
    if limit.isdigit() and int(limit) > 0:
        return min(int(limit), cores), f"OMP_NUM_THREADS is {limit} and {ours}"
    return min(cores, 16), ours + (", and more than 16 do not help" if cores > 16 else "")


def _quota() -> int | None:
    """What Linux lets this container use of the processor, in whole cores: less than the cores that it sees."""
    for names in (["cpu.max"], ["cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"]):
        try:
            return share(" ".join((Path("/sys/fs/cgroup") / name).read_text() for name in names))
        except OSError:
            continue
    return None


def share(text: str) -> int | None:
    """`200000 100000`, microseconds of how many, is two cores; `max` or -1 is no limit."""
    match text.split():
        case [quota, period] if quota.isdigit() and period.isdigit() and int(period):
            return max(1, math.floor(int(quota) / int(period) + 0.5))
    return None


@functools.cache
def _keep_freed_memory() -> None:
    """Tell glibc to keep what is freed: otherwise each large tensor is mapped, zeroed and unmapped again."""
    if not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return  # a C library without it, such as musl
    trim_threshold, mmap_max = -1, -4
    mallopt(mmap_max, 0)
    mallopt(trim_threshold, 2**31 - 1)
