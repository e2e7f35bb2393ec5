"""The files that are written for people and other programs: settings with their comments, systemd, nginx, compose."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["coordinator", "site"]


def _unit(what: str, command: str, folder: Path) -> str:
    # Flower takes a node for gone after a minute; one that is back earlier is refused.
    return f"""\
[Unit]
Description=fedmt: {what}
After=network-online.target
Wants=network-online.target

[Service]
ExecStart={sys.executable} -m fedmt {command} "{folder}"
WorkingDirectory={folder}
Restart=always
RestartSec=65
NoNewPrivileges=true
PrivateTmp=true
ProtectSystem=strict
ReadWritePaths={folder}

[Install]
WantedBy=multi-user.target
"""


def site(folder: Path, told: Mapping[str, object]) -> dict[str, str]:
    lines = "".join(f"{key}: {_yaml(value)}\n" for key, value in told.items())
    settings = f"""\
# A site of fedmt. Paths are relative to this folder.
{lines}
# What the coordinator may ask of this site; anything else is refused, and written down on both sides.
allow:
  parts: [all, adapters, controllers]
  selectors: [all, random, dynamic_pulling, top_k, apf, metasend]
  groups: [none, alone, families, random, gradients, explicit]
  memory: false          # whether sealed records of the text may leave
  least_silos: 2         # in a round: among few, one's own part shows
  most_epochs: 10        # a round
  most_rounds: 1000      # a run
"""
    name = str(told["name"])
    return {
        f"fedmt-site-{name}.service": _unit(f"the site {name}", "site run", folder),
        ".gitignore": "*\n",
        "site.yaml": settings,
    }


def coordinator(folder: Path, host: str, port: int, inner: int) -> dict[str, str]:
    settings = f"""\
# A coordinator of fedmt.
host: {host}
port: {port}        # of the proxy, that sites connect to
inner: {inner}      # of Flower's SuperLink, on this machine alone: never open it to the network
"""
    nginx = f"""\
# All that sites need of Flower's SuperLink is /v1/fleet/. Its other interfaces ask nobody who they are: whoever reaches
# them can submit runs and register nodes. So nothing else goes through, and the SuperLink itself listens on loopback.
server {{
    listen {port} ssl;
    server_name {host};
    ssl_certificate     {folder}/certificates/server.crt;
    ssl_certificate_key {folder}/certificates/server.key;
    ssl_protocols       TLSv1.2 TLSv1.3;

    location ~ ^/v1/fleet/[a-z-]+$ {{
        limit_except POST {{ deny all; }}
        client_max_body_size 16m;
        proxy_pass https://127.0.0.1:{inner};
        proxy_ssl_trusted_certificate {folder}/certificates/ca.crt;
        proxy_ssl_verify on;
        proxy_ssl_name localhost;
        proxy_http_version 1.1;
        proxy_read_timeout 120s;
    }}

    location / {{ return 404; }}
}}
"""
    # Both share the host's network: the SuperLink is then on the host's loopback, for the proxy and nobody else.
    compose = f"""\
services:
  superlink:
    build:
      dockerfile_inline: |
        FROM python:3.11-slim
        RUN pip install --no-cache-dir 'fedmt[flower]'
    network_mode: host
    user: "${{UID:-1000}}:${{GID:-1000}}"
    command: ["fedmt", "coordinator", "start", "{folder}"]
    volumes: ["{folder}:{folder}"]
    restart: always
  proxy:
    image: nginx:1
    network_mode: host
    volumes:
      - "{folder}/nginx.conf:/etc/nginx/conf.d/default.conf:ro"
      - "{folder}/certificates:{folder}/certificates:ro"
    restart: always
    depends_on: [superlink]
"""
    return {
        "nginx.conf": nginx,
        "compose.yaml": compose,
        "fedmt-coordinator.service": _unit("the coordinator", "coordinator start", folder),
        ".gitignore": "*\n",
        "coordinator.yaml": settings,
    }


def _yaml(value: object) -> str:
    """JSON is YAML, and says of each value what it is."""
    return json.dumps(value, ensure_ascii=False)
