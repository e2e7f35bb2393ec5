"""A real SuperLink and three real SuperNodes, with TLS, node authentication and the proxy, on loopback.

What is trained over them is the engine that one process trains, bit for bit; from outside the proxy nothing else is
reached; and no sentence of any silo is in a byte that passed, in the SuperLink's database or in a log outside a site.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fedmt import experiment, reading
from fedmt.cli.main import call
from fedmt.report.folder import RunFolder
from fedmt.sites import certificates
from tests.federation.canaries import found
from tests.sites.proxy import Proxy, proxied
from tests.sites.small import WAYS, Three

# One federation for all, so one worker.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("across")]


def ports(count: int) -> list[int]:
    """Free ones: all are held at once, so that no two are the same."""
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in held]


def fedmt(*arguments: object, code: int = 0) -> None:
    """One call of the program that ends by itself, in this process: its imports are paid for."""
    assert call([str(argument) for argument in arguments]) == code, arguments


class Lasting:
    """Calls of the program that last. They are asked to end all at once, and then waited for."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []

    def begin(self, log: Path, *arguments: object) -> subprocess.Popen[bytes]:
        with log.open("wb") as file:
            command = [sys.executable, "-m", "fedmt", *map(str, arguments)]
            surroundings = {**os.environ, "OMP_NUM_THREADS": "1"}
            self.processes.append(subprocess.Popen(command, env=surroundings, stdout=file, stderr=file))
        return self.processes[-1]

    def __enter__(self) -> Lasting:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait(60)


def until(what: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.2)


def started(lasting: Lasting, folder: Path) -> None:
    log = folder / "start.log"
    lasting.begin(log, "coordinator", "start", folder / "mt")
    until(lambda: b"listens" in log.read_bytes())


@dataclass
class Federation:
    three: Three
    folder: Path
    inner: int
    outer: int
    proxy: Proxy
    lasting: Lasting

    def run(self, way: dict[str, Any], name: str) -> Path:
        recipe = self.folder / f"{name}.yaml"
        recipe.write_text(reading.write(self.three.recipe(way)), encoding="utf-8")
        out = self.folder / "runs" / name
        fedmt("coordinator", "run", self.folder / "mt", recipe, "--out", out, "--wait", 120, "--quiet")
        return self.folder / "runs" / name

    def outside(self) -> Iterator[Path]:
        """Every file there is outside the sites, but for the text itself and what is only tensors."""
        for path in self.folder.rglob("*"):
            if (
                path.is_file()
                and path.suffix != ".safetensors"
                and path.relative_to(self.folder).parts[0] not in ("sites", "text", "here")
            ):
                yield path


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    folder = tmp_path_factory.mktemp("across")
    three = Three(folder)
    inner, outer, *own = ports(2 + len(three.sets))
    mt = folder / "mt"
    fedmt("coordinator", "init", mt, "--host", "127.0.0.1", "--port", outer)
    settings = mt / "coordinator.yaml"
    settings.write_text(f"host: 127.0.0.1\nport: {outer}\ninner: {inner}\n", encoding="utf-8")
    for (name, sets), port in zip(three.sets.items(), own, strict=True):
        site, texts = folder / "sites" / name, [f"--{key}={sets[key]}" for key in ("train", "dev", "test")]
        ways = ("--from", sets["from"], "--to", sets["to"], "--coordinator", f"127.0.0.1:{outer}", "--port", port)
        fedmt("site", "init", site, "--name", name, *ways, *texts)
        (site / "coordinator.crt").write_bytes((mt / "certificates" / "ca.crt").read_bytes())
        told = (site / "site.yaml").read_text(encoding="utf-8")
        (site / "site.yaml").write_text(told.replace("memory: false", "memory: true"), encoding="utf-8")
        fedmt("coordinator", "register", mt, name, site / "keys" / "node.pub")
    for name in three.sets:
        # What people compare by telephone before they put it there.
        for other in three.sets:
            key = folder / "sites" / other / "keys" / f"{other}.pub"
            (folder / "sites" / name / "members" / key.name).write_bytes(key.read_bytes())
    with contextlib.ExitStack() as stack:
        lasting = stack.enter_context(Lasting())
        started(lasting, folder)
        proxy = stack.enter_context(proxied(mt / "certificates", inner, outer))
        for name in three.sets:
            lasting.begin(folder / "sites" / f"{name}.log", "site", "run", folder / "sites" / name)
        yield Federation(three, folder, inner, outer, proxy, lasting)


@pytest.mark.timeout(900)
def test_sites_over_flower_give_the_engine_that_one_process_gives(federation: Federation) -> None:
    for number, way in enumerate(WAYS.values()):
        here = federation.folder / "here" / str(number)
        experiment.run(federation.three.recipe(way, here=True), here)
        there = federation.run(way, str(number))
        model = Path("engine", "model.safetensors")
        assert (there / model).read_bytes() == (here / model).read_bytes()
        assert (there / "scores.json").is_file()

    # What the proxy saw is what travelled, and nothing that left names a sentence.
    tape = list(federation.proxy.tape)
    federation.proxy.tape.clear()
    assert sum(map(len, tape)) > 5_000_000
    assert found(Path(federation.three.sets["north"]["train"]).read_bytes())
    for content in tape:
        assert found(content) is None
    looked = {path.name for path in federation.outside() if found(path.read_bytes()) is None}
    held = {path.name for path in federation.outside()}
    assert looked == held
    assert {"superlink.db", "superlink.log", "start.log", "ledger.jsonl"} <= held


@pytest.mark.timeout(900)
def test_a_memory_over_flower_translates_as_that_of_one_process(federation: Federation) -> None:
    way = {"memory": {"code_bytes": 4, "lists": 4, "sample": 2000}, "rounds": 0, "baselines": []}
    here = federation.folder / "here" / "memory"
    experiment.run(federation.three.recipe(way, here=True), here)
    there = federation.run(way, "memory")
    assert RunFolder(there).read_scores().rows == RunFolder(here).read_scores().rows
    for content in federation.proxy.tape:
        assert found(content) is None


@pytest.mark.timeout(900)
def test_a_superlink_that_is_killed_is_started_again_and_the_run_goes_on(federation: Federation) -> None:
    way: dict[str, Any] = {"baselines": []}
    here, metrics = federation.folder / "here" / "killed", federation.folder / "runs" / "killed" / "metrics.jsonl"
    experiment.run(federation.three.recipe(way, here=True), here)

    def harm() -> None:
        until(lambda: metrics.exists() and '"trained", "model": "federated"' in metrics.read_text(encoding="utf-8"))
        start = federation.lasting.processes[0]
        start.kill()
        start.wait()
        until(lambda: not answers(federation.inner))
        started(federation.lasting, federation.folder)

    harming = threading.Thread(target=harm)
    harming.start()
    there = federation.run(way, "killed")
    harming.join()
    model = Path("engine", "model.safetensors")
    assert (there / model).read_bytes() == (here / model).read_bytes()


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2):
        return True
    return False


def test_a_site_finds_nothing_to_mend_but_what_is_broken(
    federation: Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    site = federation.folder / "sites" / "north"
    fedmt("site", "check", site)
    assert capsys.readouterr().out.count("ok ") == 8
    key = site / "keys" / "node"
    key.chmod(0o644)
    fedmt("site", "check", site, code=1)
    assert f"chmod 600 {key}" in capsys.readouterr().out
    key.chmod(0o600)


def post(port: int, path: str, trust: ssl.SSLContext | None, body: bytes = b"") -> int:
    """The status that a stranger gets; `trust` None: by plain HTTP."""
    made: http.client.HTTPConnection
    if trust is None:
        made = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    else:
        made = http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=trust)
    with contextlib.closing(made):
        made.request("POST", path, body, {"content-type": "application/protobuf"})
        return made.getresponse().status


def test_from_outside_the_proxy_only_registered_sites_are_heard(federation: Federation, tmp_path: Path) -> None:
    mt, port = federation.folder / "mt", federation.outer
    trust = ssl.create_default_context(cafile=str(mt / "certificates" / "ca.crt"))
    # Runtime and Control APIs, and the ways round the filter: nothing is let through.
    for path in (
        "/v1/runtime/acquire-task",
        "/v1/runtime/pull-messages",
        "/v1/control/start-run",
        "/v1/control/register-node",
        "/v1/fleet/../control/list-nodes",
        "/v1/fleet/%2e%2e/control/list-nodes",
        "/v1/fleet//../control/list-nodes",
        "//v1/control/list-nodes",
        "/docs",
        "/health",
        "/",
    ):
        assert post(port, path, trust) == 404, path
    # Behind the proxy they are there: it is the proxy that keeps strangers from them.
    assert post(federation.inner, "/v1/control/list-nodes", trust) == 200
    # Without a key, even what is let through is refused.
    for path in ("pull-messages", "push-messages", "activate-node", "get-run", "pull-object", "register-node"):
        assert post(port, f"/v1/fleet/{path}", trust) == 401, path
    with pytest.raises((http.client.HTTPException, OSError)):
        post(port, "/v1/fleet/activate-node", None)
    certificates.authority(tmp_path, "another")
    with pytest.raises(ssl.SSLCertVerificationError):
        post(port, "/v1/fleet/activate-node", ssl.create_default_context(cafile=str(tmp_path / "ca.crt")))


def test_a_key_that_is_not_registered_and_a_coordinator_of_another_authority_are_refused(
    federation: Federation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (port,) = ports(1)
    sets = federation.three.sets["north"]
    texts = [f"--{key}={sets[key]}" for key in ("train", "dev", "test")]
    ways = ("--from", "de", "--to", "en", "--coordinator", f"127.0.0.1:{federation.outer}", "--port", port)
    stranger = tmp_path / "stranger"
    fedmt("site", "init", stranger, "--name", "stranger", *ways, *texts)
    authority = (federation.folder / "mt" / "certificates" / "ca.crt").read_bytes()
    (stranger / "coordinator.crt").write_bytes(authority)
    fedmt("site", "run", stranger, code=1)
    assert "SuperNode ID" not in (stranger / "state" / "supernode.log").read_text(encoding="utf-8")
    certificates.authority(tmp_path, "another")
    (stranger / "coordinator.crt").write_bytes((tmp_path / "ca.crt").read_bytes())
    capsys.readouterr()
    fedmt("site", "check", stranger, code=1)
    assert "another's certificate" in capsys.readouterr().out
