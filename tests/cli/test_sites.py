"""`fedmt site` and `fedmt coordinator`: folders that are safe from the start, and mistakes told in one line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from cryptography import x509

from fedmt.sites import settings
from tests.conftest import Call, moses
from tests.sites import proxy

SITE = ("--name", "clinic", "--from", "de", "--to", "en", "--coordinator", "mt.example.org:443")


@pytest.fixture
def folder(call: Call, tmp_path: Path) -> Path:
    moses(tmp_path / "text", copies=100)
    assert call("site", "init", tmp_path / "clinic", *SITE, "--data", tmp_path / "text").code == 0
    return tmp_path / "clinic"


def test_a_new_site_is_private_and_reads_back(folder: Path) -> None:
    site = settings.read(folder)
    assert (site.name, site.from_, site.to, site.allow.memory) == ("clinic", "de", "en", False)
    assert site.data == [str(folder.parent / "text")]
    for name in ("keys/node", "keys/clinic.key", "secret"):
        assert (folder / name).stat().st_mode & 0o077 == 0, name
    assert folder.stat().st_mode & 0o077 == 0
    unit = (folder / "fedmt-site-clinic.service").read_text(encoding="utf-8")
    assert f'site run "{folder}"' in unit
    assert int(re.findall(r"RestartSec=(\d+)", unit)[0]) > 60


def test_a_coordinators_folder_trusts_itself_and_names_its_host(call: Call, tmp_path: Path) -> None:
    mt = tmp_path / "mt"
    assert call("coordinator", "init", mt, "--host", "mt.example.org", "--port", 8443).code == 0
    made = x509.load_pem_x509_certificate((mt / "certificates/server.crt").read_bytes())
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["mt.example.org", "localhost"]
    made.verify_directly_issued_by(x509.load_pem_x509_certificate((mt / "certificates/ca.crt").read_bytes()))
    for name in ("certificates/ca.key", "certificates/server.key", "secret"):
        assert (mt / name).stat().st_mode & 0o077 == 0, name
    services = yaml.safe_load((mt / "compose.yaml").read_text(encoding="utf-8"))["services"]
    assert services.keys() == {"superlink", "proxy"}
    assert all("ports" not in service for service in services.values())


def test_the_proxy_of_the_tests_lets_through_what_the_shipped_one_does(call: Call, tmp_path: Path) -> None:
    call("coordinator", "init", tmp_path / "mt", "--host", "127.0.0.1")
    nginx = (tmp_path / "mt/nginx.conf").read_text(encoding="utf-8")
    assert re.findall(r"location (.*?) \{", nginx) == [f"~ {proxy.PATH}", "/"]
    assert nginx.count("proxy_pass") == 1
    assert "return 404" in nginx


def test_a_key_is_kept_once_and_for_one_name(call: Call, folder: Path, tmp_path: Path) -> None:
    mt, key = tmp_path / "mt", folder / "keys/node.pub"
    call("coordinator", "init", mt, "--host", "127.0.0.1")
    (mt / "coordinator.yaml").write_text("host: 127.0.0.1\ninner: 1\n", encoding="utf-8")
    assert call("coordinator", "register", mt, "clinic", key).code == 0
    assert call("coordinator", "register", mt, "clinic", key).code == 0
    assert "each site has its own" in call("coordinator", "register", mt, "court", key).err
    call("site", "init", tmp_path / "other", *SITE, "--data", tmp_path / "text")
    done = call("coordinator", "register", mt, "clinic", tmp_path / "other/keys/node.pub")
    assert (done.code, "another key already" in done.err) == (2, True)
    done = call("coordinator", "register", mt, "clinic", folder / "keys/clinic.pub")
    assert (done.code, "is no node's public key" in done.err) == (2, True)
    assert "is no site's name" in call("coordinator", "register", mt, "../../evil", key).err


def test_check_says_what_to_mend_and_ends_with_one(call: Call, folder: Path) -> None:
    (folder / "keys/node").chmod(0o644)
    (folder / "site.yaml").write_text(
        (folder / "site.yaml").read_text(encoding="utf-8").replace("mt.example.org:443", "127.0.0.1:1"),
        encoding="utf-8",
    )
    done = call("site", "check", folder, "--json")
    assert done.code == 1
    found = {line["what"]: line["good"] for line in done.records if line["event"] == "checked"}
    assert found == {
        "program": True,
        "keys": False,
        "corpora": True,
        "engines": True,
        "disk": found["disk"],
        "certificate": False,
        "connection": False,
        "clock": False,
    }
    words = [line["words"] for line in done.records if line["event"] == "checked" and not line["good"]]
    assert all("mend: " in said for said in words)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("site", "init", "new", *SITE), "needs `data`"),
        (("site", "init", ".", *SITE, "--data", "x"), "is there already"),
        (("site", "init", "new", *SITE[:-1], "nowhere", "--data", "x"), "--coordinator"),
        (("site", "init", "new", *SITE, "--data", "x", "--port", "x"), "a whole number"),
        (("site", "check", "nowhere"), "site.yaml: cannot be read"),
        (("site", "run", "nowhere"), "site.yaml: cannot be read"),
        (("coordinator", "init", "new", "--host", "a b"), "is no host"),
        (("coordinator", "start", "nowhere"), "coordinator.yaml: cannot be read"),
        (("coordinator", "run", "nowhere", "toy"), "coordinator.yaml: cannot be read"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    call: Call, here: Path, arguments: tuple[str, ...], said: str
) -> None:
    done = call(*arguments)
    assert done.code == 2
    assert said in done.err
    assert done.err.count("\n") == 1
    assert "Traceback" not in done.err
    assert not (here / "new").exists()


def test_a_recipe_without_sites_is_not_for_a_coordinator(call: Call, tmp_path: Path) -> None:
    call("coordinator", "init", tmp_path / "mt", "--host", "127.0.0.1")
    done = call("coordinator", "run", tmp_path / "mt", "toy")
    assert (done.code, "run it by `fedmt run`" in done.err) == (2, True)


def test_without_flower_one_line_says_what_to_install(folder: Path) -> None:
    code = (
        "import sys; sys.modules['flwr'] = None; from fedmt.cli.main import call; "
        f"sys.exit(call(['site', 'run', {str(folder)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ}, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install 'fedmt[flower]'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_what_is_told_as_json_is_json(call: Call, tmp_path: Path) -> None:
    done = call("coordinator", "init", tmp_path / "mt", "--host", "127.0.0.1", "--json")
    assert [json.loads(line)["event"] for line in done.out.splitlines()] == ["coordinator"]
