"""Requests and replies over Flower: the `Flower` transport, what a site does with a message, and who takes which task.

All that speaks to `flwr`, of one exact version: what carries a task is not part of Flower's public face.
A message is its literal bytes (`messages.wire`) in arrays of bytes, which Flower cuts up, addresses by content and
does not limit; so the payload that all silos of a round are sent crosses to the SuperLink once. Flower's own programs
would start a process for each message and run in it the code that comes with a run. Here neither happens: whoever
holds the SuperExec's secret of a SuperLink or SuperNode takes the task into a process that is there already, and of
what came with the run only its settings are read. Knows nothing of what a message means.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.serialization import load_ssh_public_key

from fedmt.errors import CommandError, Failure
from fedmt.exchange.codec import Payload
from fedmt.federation.messages import Reply, Request, header, unwire

try:
    # Read when Flower is imported: nobody is told that it runs.
    os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1")
    import httpx
    from flwr.app import Array, ArrayRecord, Error, Message, RecordDict
    from flwr.cli.build import build_fab_from_disk
    from flwr.common.constant import ErrorCode, SubStatus
    from flwr.common.serde import context_from_proto, fab_to_proto, run_from_proto, user_config_to_proto
    from flwr.proto.control_pb2 import RegisterNodeRequest, StartRunRequest
    from flwr.proto.node_pb2 import Node
    from flwr.proto.runtime_pb2 import (
        AcquireTaskRequest,
        PullAppMessagesRequest,
        PullTaskInputRequest,
        PushTaskOutputRequest,
        SendTaskHeartbeatRequest,
    )
    from flwr.serverapp import Grid
    from flwr.supercore.constant import TaskType
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.fab import Fab
    from flwr.supercore.heartbeat import HeartbeatSender
    from flwr.supercore.inflatable.inflatable_protobuf_utils import (
        make_confirm_message_received_fn_protobuf,
        make_pull_object_fn_protobuf,
    )
    from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree
    from flwr.supercore.interceptors import (
        RuntimeTokenHttpInterceptor,
        RuntimeVersionHttpInterceptor,
        SuperExecAuthHttpInterceptor,
    )
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes
    from flwr.supercore.retry import make_simple_http_retry_invoker
    from flwr.supercore.runtime import RuntimeHttpClient
    from flwr.supercore.task_identity import TaskIdentity
    from flwr.superlink.grid import HttpGrid, http_grid
    from flwr.supernode.runtime.run_clientapp import push_message
except ImportError as error:
    raise CommandError(f"sites are reached by Flower: pip install 'fedmt[flower]' ({error})") from error

__all__ = ["GONE", "Answer", "Door", "Flower", "Unreachable", "attend", "register", "respond", "session"]

Answer = Callable[[bytes, Mapping[str, Any]], bytes]
"""The bytes of a request, and the settings of its run, to the bytes of a reply. If it raises, nothing leaves."""

Unreachable = httpx.HTTPError

KIND = "query"
# Of a message in all, its answer included: a silo may train for days.
_LIFE = 14 * 24 * 3600.0
# A site that has gone may come back so many times during one request.
_MOST_TRIES = 20
_MOST_LATE = 1000
_LONGEST_POLL = 2.0
# Without a reply for so long, a site is asked whether the request reached it; then each time after twice as long.
_QUIET, _LONGEST_QUIET = 20.0, 600.0
# How long a site that has gone is waited for: enough for one that is started again.
GONE = 180.0
MOST_BYTES = 1 << 36

# A message is announced before its parts are there, and whoever pulls one too early tries again: after a second, two,
# four, as Flower has it, which is longer than all the parts take. Sooner, then, and for as long in all.
_AGAIN: dict[str, Any] = {"initial_backoff": 0.05, "backoff_cap": 0.5, "max_tries_per_object": None}
http_grid.pull_objects = functools.partial(http_grid.pull_objects, **_AGAIN)


# ── bytes in arrays ─────────────────────────────────────────────────────────────────────────────────────────────────


def _array(content: Payload) -> Any:
    return Array("uint8", (memoryview(content).nbytes,), "bytes", bytes(content))


def _record(parts: Mapping[str, Any]) -> Any:
    return RecordDict({"message": ArrayRecord(dict(parts))})


def _parts(message: Any, most: int) -> tuple[bytes, bytes]:
    """What the two arrays of a message hold; a ValueError where it is something else, or too much."""
    records = dict(message.content)
    record = records.get("message")
    if records.keys() != {"message"} or not isinstance(record, ArrayRecord) or record.keys() - {"head", "body"}:
        raise ValueError("a message of fedmt is one record of two arrays")
    if any(part.dtype != "uint8" or part.stype != "bytes" for part in record.values()):
        raise ValueError("a message of fedmt is bytes")
    head, body = (bytes(record[name].data) if name in record else b"" for name in ("head", "body"))
    if len(head) + len(body) > most:
        raise ValueError(f"a message of {len(head) + len(body)} bytes; {most} are allowed")
    return head, body


# ── the server's side ───────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class _Asked:
    request: Request
    tries: int = 1
    lost: float | None = None
    pause: float = _QUIET
    probed: float = 0.0
    probes: list[str] = field(default_factory=list)


class Flower:
    """Silos by the names that their keys were registered under. Replies are pulled one message at a time.

    A request to a site that went away is sent again when it is back. Without a deadline such a site is waited for
    `gone` seconds; one that is there is waited for without end.

    Flower hands each message on once: if the connection breaks just then, it is gone, and nobody is told. So a site
    that is quiet for long is sent an empty message, which it answers without doing anything. Messages are handed on in
    the order they were sent, and a site works on one at a time: when the empty one has come back and the reply has not,
    the request or its reply was lost, and it is sent again. A site answers the same twice.
    """

    def __init__(
        self,
        grid: Grid,
        *,
        most: int = MOST_BYTES,
        gone: float = GONE,
        poll: float = 0.25,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._grid = grid
        self._most = most
        self._gone = gone
        self._poll = poll
        self._clock = clock
        self._sleep = sleep
        self._late: dict[str, _Asked] = {}

    def silos(self) -> list[str]:
        return sorted(self._nodes())

    def ask(self, requests: Sequence[Request], deadline: float | None = None) -> Iterator[Reply]:
        begun, looked = self._clock(), self._clock()
        nodes, bodies = self._nodes(), dict[int, Any]()
        waiting: dict[str, _Asked] = {}
        away: list[_Asked] = []
        pause = self._poll
        for request in requests:
            # All who are sent the same share one array, which Flower then stores once.
            if id(request.payload) not in bodies:
                bodies[id(request.payload)] = _array(request.payload)
            self._send(_Asked(request), nodes, waiting, away, bodies[id(request.payload)])
        bodies.clear()
        while waiting or away:
            if deadline is not None and self._clock() - begun > deadline:
                break
            quiet = True
            # Before the replies are looked for: one that comes in between is not missed.
            passed = [id_ for id_, asked in waiting.items() if self._passed(asked)]
            for id_ in [*self._late, *waiting]:
                asked = self._late.get(id_) or waiting[id_]
                found = list(_reached(self._grid.pull_messages, [id_]))
                if found:
                    quiet = False
                    self._late.pop(id_, None)
                    mine = waiting.pop(id_, None)
                    # Given away at once: what is kept here would be in memory while the next one comes.
                    replies = [self._reply(message, asked.request) for message in found if not message.has_error()]
                    found.clear()
                    if replies:
                        yield replies.pop()
                    elif mine is not None:
                        mine.lost = self._clock()
                        away.append(mine)
            for id_ in passed:
                if id_ in waiting:
                    nodes = self._nodes()
                    self._send(waiting.pop(id_), nodes, waiting, away)
            if away and (quiet or self._clock() - looked > 2.0):
                nodes, looked = self._nodes(), self._clock()
                # Without a deadline nobody waits for ever for a site that has gone.
                patient = [one for one in away if deadline is not None or self._clock() - (one.lost or 0) < self._gone]
                away = []
                for one in patient:
                    self._send(one, nodes, waiting, away)
            # A silo that trains for hours need not be asked for four times a second.
            pause = min(pause * 1.2, _LONGEST_POLL) if quiet else self._poll
            if quiet and (waiting or away):
                self._sleep(pause)
        self._late.update(waiting)
        while len(self._late) > _MOST_LATE:
            self._late.pop(next(iter(self._late)))

    def _passed(self, asked: _Asked) -> bool:
        """Whether an empty message that was sent after the request has come back; sends one when it is time."""
        if any(list(_reached(self._grid.pull_messages, [id_])) for id_ in asked.probes):
            return True
        if self._clock() - asked.probed > asked.pause:
            asked.probed, asked.pause = self._clock(), min(2 * asked.pause, _LONGEST_QUIET)
            node = self._nodes().get(asked.request.silo)
            if node is not None:
                probe = Message(_record({}), node, KIND, ttl=_LIFE, group_id=str(asked.request.round))
                asked.probes += [id_ for id_ in _reached(self._grid.push_messages, [probe]) if id_]
        return False

    def _nodes(self) -> dict[str, int]:
        return {node.name: node.node_id for node in _reached(self._grid.get_nodes) if node.name}

    def _send(
        self, asked: _Asked, nodes: Mapping[str, int], waiting: dict[str, _Asked], away: list[_Asked], body: Any = None
    ) -> None:
        request = asked.request
        node = nodes.get(request.silo)
        if asked.tries > _MOST_TRIES:
            return
        if node is None:
            asked.lost = self._clock() if asked.lost is None else asked.lost
            away.append(asked)
            return
        parts = {"head": _array(header(request))}
        if memoryview(request.payload).nbytes:
            parts["body"] = _array(request.payload) if body is None else body
        message = Message(_record(parts), node, KIND, ttl=_LIFE, group_id=str(request.round))
        sent = list(_reached(self._grid.push_messages, [message]))
        asked.tries += 1
        if sent and sent[0]:
            asked.lost, asked.probed, asked.probes = None, self._clock(), []
            waiting[sent[0]] = asked
        else:
            asked.lost = self._clock() if asked.lost is None else asked.lost
            away.append(asked)

    def _reply(self, message: Any, request: Request) -> Reply:
        """What came, or a refusal that says why it is nothing: for the coordinator to name."""
        try:
            head, body = _parts(message, self._most)
            reply = unwire(head)
            if not isinstance(reply, Reply) or reply.silo != request.silo or len(reply.payload):
                raise ValueError("a site answers for itself, its message's head apart from the body")
        except (ValueError, TypeError):
            key = (request.run, request.model, request.round, request.step, request.silo)
            return Reply(*key, refused="unreadable")
        return replace(reply, payload=memoryview(body))


def _reached(call: Callable[..., Any], *given: Any) -> Any:
    """Flower's own client waits for a SuperLink that is away; what else it meets ends the run."""
    try:
        return call(*given)
    except httpx.HTTPError as error:
        said = " ".join(str(error).split())[:200]
        raise Failure(f"the SuperLink has ended this run, or is not there ({said}); go on by --resume") from error


# ── a site's side ───────────────────────────────────────────────────────────────────────────────────────────────────


def respond(message: Any, settings: Mapping[str, Any], answer: Answer, most: int = MOST_BYTES) -> Any:
    """A Flower message's reply. An error says nothing but that there is one: its words might quote the text."""
    try:
        content = answer(b"".join(_parts(message, most)), settings)
    except Exception:
        return Message(Error(ErrorCode.UNKNOWN, "nothing leaves"), reply_to=message)
    # As `messages.header` begins: with its own length.
    length, view = 8 + int.from_bytes(content[:8], "little"), memoryview(content)
    parts = {"head": _array(view[:length])}
    if len(content) > length:
        parts["body"] = _array(view[length:])
    return Message(_record(parts), reply_to=message)


@dataclass(frozen=True)
class Door:
    """Where a SuperLink or SuperNode gives out tasks; `certificate` None: in plain HTTP, on this machine."""

    address: str
    secret: bytes
    certificate: bytes | None = None

    def client(self, *interceptors: Any, name: str = "SuperExec", retry: bool = True) -> Any:
        return RuntimeHttpClient.from_server_address(
            server_address=self.address,
            insecure=self.certificate is None,
            root_certificates=self.certificate,
            interceptors=[RuntimeVersionHttpInterceptor(component_name=name), *interceptors],
            retry_invoker=make_simple_http_retry_invoker() if retry else None,
        )

    def tasks(self, kind: Any, pause: float) -> Iterator[tuple[int, str] | None]:
        """The run and the token of each task as it is there; None when there was none."""
        methods = frozenset({"/flwr.proto.Runtime/AcquireTask"})
        signed = SuperExecAuthHttpInterceptor(master_secret=self.secret, protected_methods=methods)
        client = self.client(signed, retry=False)
        try:
            while True:
                found = client.AcquireTask(AcquireTaskRequest(supported_task_types=[kind]))
                if found.HasField("task") and found.token:
                    yield int(found.task.run_id), str(found.token)
                else:
                    yield None
                    time.sleep(pause)
        finally:
            client.close()


@contextlib.contextmanager
def _alive(client: Any) -> Iterator[None]:
    """Tell that the task is being worked on. Flower's own sender would interrupt this process when a run ends."""

    def beat() -> bool:
        with contextlib.suppress(httpx.HTTPError):
            client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
        return True

    sender = HeartbeatSender(beat)
    sender.start()
    try:
        yield
    finally:
        sender.stop()


def _received(client: Any) -> tuple[Any, Any]:
    """The message of a task, and the context of its run. As Flower's own `pull_task_input`, but for the pauses."""
    found = client.PullTaskInput(PullTaskInputRequest())
    TaskIdentity.task_id, TaskIdentity.run_id = found.task_id, found.run.run_id
    TaskIdentity.node_id = found.context.node_id
    context = context_from_proto(found.context)
    pulled = client.PullMessages(PullAppMessagesRequest())
    if not pulled.messages_list:
        raise RuntimeError("the task has no message")
    tree, node = pulled.message_object_trees[0], Node(node_id=context.node_id)
    message = pull_and_inflate_object_from_tree(
        tree,
        make_pull_object_fn_protobuf(client.PullObject, node, context.run_id),
        make_confirm_message_received_fn_protobuf(client.ConfirmMessageReceived, node, context.run_id),
        return_type=Message,
        **_AGAIN,
    )
    message.metadata.__dict__["_message_id"] = tree.object_id
    return message, context


def attend(door: Door, answer: Answer, going: Callable[[], bool] = lambda: True, pause: float = 0.2) -> None:
    """Answer what a SuperNode receives, one message after the other, until `going` says no."""
    for task in door.tasks(TaskType.CLIENT_APP, pause):
        if not going():
            return
        if task is None:
            continue
        client = door.client(RuntimeTokenHttpInterceptor(task[1]), name="flwr-clientapp", retry=False)
        try:
            with _alive(client):
                message, context = _received(client)
                push_message(client, respond(message, context.run_config, answer), context)
                client.PushTaskOutput(PushTaskOutputRequest(sub_status=SubStatus.COMPLETED, details=""))
        except (httpx.HTTPError, RuntimeError):
            # The run was stopped, or the SuperNode: there is nobody to answer any more.
            continue
        finally:
            client.close()


# ── a run ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _control(door: Door) -> Any:
    return ControlHttpClient.from_server_address(
        server_address=door.address,
        insecure=door.certificate is None,
        root_certificates=door.certificate,
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
    )


def register(door: Door, sites: Mapping[str, str]) -> list[str]:
    """Tell the SuperLink the sites' keys, each a line in OpenSSH's format; gives the sites that it did not know."""
    client, new = _control(door), []
    try:
        for name, line in sites.items():
            key = public_key_to_bytes(load_ssh_public_key(line.encode()))
            try:
                client.RegisterNode(RegisterNodeRequest(public_key=key, name=name))
                new.append(name)
            except httpx.HTTPStatusError as error:
                # 412: it knows the key already.
                if error.response.status_code != 412:
                    raise
    except httpx.HTTPError as error:
        raise Failure(f"{door.address}: the SuperLink does not answer: {type(error).__name__}") from error
    finally:
        client.close()
    return new


@contextlib.contextmanager
def session(door: Door, app: Path, settings: Mapping[str, Any], wait: float = 60.0) -> Iterator[Flower]:
    """A run of the app in this folder at the SuperLink, carried out by this process while the block lasts."""
    control = _control(door)
    try:
        with warnings.catch_warnings():
            # Of Flower's own making; nobody here can mend it.
            warnings.simplefilter("ignore")
            content = build_fab_from_disk(app)
        fab = Fab("", content, {})
        started = control.StartRun(
            StartRunRequest(fab=fab_to_proto(fab), override_config=user_config_to_proto(dict(settings)))
        )
        run = int(started.run_id)
    except httpx.HTTPError as error:
        raise Failure(f"{door.address}: the SuperLink takes no run: {error}") from error
    finally:
        control.close()
    until = time.monotonic() + wait
    for task in door.tasks(TaskType.SERVER_APP, 0.2):
        if task is None and time.monotonic() > until:
            raise Failure(f"{door.address}: the SuperLink gave the run to somebody else")
        if task is None:
            continue
        # Whoever submitted an older one is gone.
        mine = task[0] == run
        grid = HttpGrid(door.address, door.certificate is None, door.certificate, token=task[1])
        status = SubStatus.FAILED
        try:
            with _alive(grid._runtime_client):
                found = grid._runtime_client.PullTaskInput(PullTaskInputRequest())
                grid.set_run(run_from_proto(found.run))
                # Flower has one task a process, and knows it by these.
                TaskIdentity.task_id, TaskIdentity.run_id = found.task_id, found.run.run_id
                TaskIdentity.node_id = found.context.node_id
                if mine:
                    yield Flower(grid)
                    status = SubStatus.COMPLETED
        finally:
            with contextlib.suppress(httpx.HTTPError):
                grid._runtime_client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=""))
            grid.close()
        if mine:
            return
