"""A reverse proxy of tests: TLS in front, TLS behind, one path let through, and every byte that passes kept.

It does what the shipped nginx.conf says; `tests/cli/test_sites.py` holds the two against each other.
"""

from __future__ import annotations

import http.client
import re
import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PATH = r"^/v1/fleet/[a-z-]+$"


class Proxy(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, certificates: Path, inner: int, port: int = 0, *, keep: bool = True) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates / "server.crt", certificates / "server.key")
        self.context = context
        self.behind = ssl.create_default_context(cafile=str(certificates / "ca.crt"))
        self.inner = inner
        self.keep = keep
        self.tape: list[bytes] = []

    def get_request(self) -> tuple[ssl.SSLSocket, tuple[str, int]]:
        # The handshake is the handler's: one client that never speaks must not keep the others waiting.
        plain, address = self.socket.accept()
        plain.settimeout(60)
        return self.context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False), address

    def handle_error(self, request: object, client_address: object) -> None:
        """Connections that are refused are what tests ask for."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if not re.fullmatch(PATH, self.path):
            self._send(404, {}, b"")
            return
        connection = http.client.HTTPSConnection("127.0.0.1", self.server.inner, timeout=60, context=self.server.behind)
        dropped = {"host", "connection", "accept-encoding"}
        headers = {name: value for name, value in self.headers.items() if name.lower() not in dropped}
        try:
            connection.request("POST", self.path, body, headers)
            answer = connection.getresponse()
            content = answer.read()
        except OSError:
            self._send(502, {}, b"")
            return
        finally:
            connection.close()
        head = "".join(f"{name}: {value}\n" for name, value in headers.items())
        if self.server.keep:
            self.server.tape += [f"{self.path}\n{head}".encode() + body, content]
        kept = {name: value for name, value in answer.getheaders() if name.lower() in ("content-type", "date")}
        self._send(answer.status, kept, content)

    def do_GET(self) -> None:
        self._send(404, {}, b"")

    def _send(self, status: int, headers: dict[str, str], content: bytes) -> None:
        self.send_response_only(status)
        if "date" not in {name.lower() for name in headers}:
            self.send_header("date", self.date_time_string())
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def proxied(certificates: Path, inner: int, port: int) -> Iterator[Proxy]:
    server = Proxy(certificates, inner, port)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


if __name__ == "__main__":
    # In a process of its own it can be killed: CERTIFICATES INNER PORT.
    Proxy(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), keep=False).serve_forever()
