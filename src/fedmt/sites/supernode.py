"""Flower's SuperNode, so that it outlives a broken connection, and never lives on without one.

Flower tries a broken connection again without end, unless the words of the error have "ssl" in them: then it takes the
certificate for wrong. A connection that breaks during a handshake says "SSL: UNEXPECTED_EOF_WHILE_READING". And where
it gives up, its program leaves its loop but not its process, which a thread keeps: it would look alive and ask no more.
Started as a program of its own, with `flower-supernode`'s arguments.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from types import SimpleNamespace

__all__ = ["LEFT", "main", "patient", "prompt"]

LEFT = 75
"""What it ends with if it had been let in and its connection is over."""


def patient() -> None:
    """Let a handshake that was cut off look like any other connection that was. A wrong certificate stays one."""
    import httpx

    send = httpx.HTTPTransport.handle_request

    def handle(self: httpx.HTTPTransport, request: httpx.Request) -> httpx.Response:
        try:
            return send(self, request)
        except httpx.TransportError as error:
            said = str(error)
            if "CERTIFICATE" in said or not ("EOF" in said or "reset" in said):
                raise
            raise type(error)("the connection was cut off") from None

    httpx.HTTPTransport.handle_request = handle  # type: ignore[method-assign]


def prompt() -> None:
    """Ask for work soon after something was sent, and less often the longer nothing comes.

    Flower sleeps three seconds before it asks again, and one, two, four where parts of a message are still on their
    way to the SuperLink: in a round of little training that is most of its time.
    """
    from flwr.supernode import start_client_internal as loop

    quiet = 0.0

    def sleep(seconds: float) -> None:
        nonlocal quiet
        pause = min(seconds, max(0.25, quiet / 10))
        # The longest of its pauses is the one for want of work.
        quiet = quiet + pause if seconds > 1 else 0.0
        time.sleep(pause)

    loop.time = SimpleNamespace(sleep=sleep)
    loop.pull_objects = functools.partial(
        loop.pull_objects, initial_backoff=0.05, backoff_cap=0.5, max_tries_per_object=None
    )


def main() -> None:
    from flwr.supernode.cli.flower_supernode import flower_supernode

    sys.argv[0] = "flower-supernode"
    patient()
    prompt()
    flower_supernode()
    sys.stderr.flush()
    os._exit(LEFT)


if __name__ == "__main__":
    main()
