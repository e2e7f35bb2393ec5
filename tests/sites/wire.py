"""The line between one site and the coordinator, byte by byte: it can be cut, go dark, or break within a transfer.

What passes is TLS of others; nothing of it is read.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from typing import Literal

__all__ = ["Broken", "Wire"]

Broken = Literal["refused", "dark"]
_PIECE = 1 << 14


class Wire:
    """Forwards connections to a port of this machine. `left` is how many bytes pass before the line breaks once."""

    def __init__(self, port: int, inner: int) -> None:
        self.port, self.inner = port, inner
        self.broken: Broken | None = None
        self._left: int | None = None
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._lock = threading.Lock()
        self._going = True
        self._listener = socket.create_server(("127.0.0.1", port))
        self._listener.settimeout(0.2)
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def cut(self, how: Broken) -> None:
        """From now on nothing passes: connections are closed (and new ones too), or stay and are silent."""
        self.broken = how
        if how == "refused":
            self.reset()

    def mend(self) -> None:
        # What was sent into the dark is gone, and so are its connections.
        self.broken = None
        self.reset()

    def tear(self, left: int) -> None:
        """The line breaks once, in the middle of the first transfer on one connection that has so many bytes."""
        self._left = left

    @property
    def torn(self) -> bool:
        return self._left is None

    def reset(self) -> None:
        with self._lock:
            pairs = list(self._pairs)
        for pair in pairs:
            self._drop(pair)

    def close(self) -> None:
        self._going = False
        self._thread.join(10)
        self._listener.close()
        self.reset()

    def _accept(self) -> None:
        while self._going:
            try:
                near, _ = self._listener.accept()
            except OSError:
                continue
            if self.broken == "refused":
                near.close()
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self.inner), timeout=5)
            except OSError:
                near.close()
                continue
            pair = near, far
            with self._lock:
                self._pairs.add(pair)
            threading.Thread(target=self._forward, args=(pair,), daemon=True).start()

    def _forward(self, pair: tuple[socket.socket, socket.socket]) -> None:
        other = {pair[0]: pair[1], pair[1]: pair[0]}
        passed = 0
        try:
            while self._going and pair in self._pairs:
                for one in select.select(pair, [], [], 0.2)[0]:
                    content = one.recv(_PIECE)
                    if not content:
                        return
                    if self.broken is not None:
                        continue
                    passed += len(content)
                    if self._left is not None and passed > self._left:
                        over = passed - self._left
                        self._left = None
                        other[one].sendall(content[:-over])
                        return
                    other[one].sendall(content)
        except (OSError, ValueError):
            # Closed by `reset`, or by either end.
            return
        finally:
            self._drop(pair)

    def _drop(self, pair: tuple[socket.socket, socket.socket]) -> None:
        with self._lock:
            self._pairs.discard(pair)
        for one in pair:
            with contextlib.suppress(OSError):
                # Without a farewell, as a line breaks.
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            one.close()
