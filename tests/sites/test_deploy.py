"""docs/deploy.md followed word for word in fresh folders: one for the coordinator, one for each of two sites.

Every command of the page is run by a shell, or stands in a table below with what is done instead. What they printed is
`deploy.txt`; after a change that is meant, write it anew:

    python -m tests.sites.test_deploy > tests/sites/deploy.txt
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sites.proxy import proxied
from tests.sites.small import _SOUNDS
from tests.sites.test_across import ports, until
from tests.test_docs import ROOT, blocks

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("across")]

PAGE = ROOT / "docs" / "deploy.md"
TRANSCRIPT = Path(__file__).with_name("deploy.txt")

# What the page says, and what this test says in its place: there is one machine, and no name server. Lower-case words
# in braces are ports.
INSTEAD = {
    "--host mt.example.org": "--host 127.0.0.1 --port {outer}",
    "mt.example.org:443": "127.0.0.1:{outer} --port {own}",
}
# Commands of the page's blocks that are not run here, and what is done instead.
NOT_RUN = {
    'pip install "fedmt[flower]"': "the environment of the tests has both",
    "cp mt/nginx.conf /etc/nginx/conf.d/fedmt.conf": "tests/sites/proxy.py in place of nginx",
}
# Programs named in running text that are not run here.
NAMED = {
    "docker compose -f mt/compose.yaml up -d": "needs Docker",
    "fedmt run": "not across sites",
    "fedmt data inspect": "in corpora.md",
    "fedmt translate NAME": "needs the hub",
}
# Commands that stay until they are ended, and what they print when they are ready.
STAY = {"fedmt coordinator start mt": "listens on", "fedmt site run clinic": "is asked for work"}
# Deeds that the page asks of people, before a command: a file carried from one organisation to another.
CARRIED = {
    "cp ca.crt clinic/coordinator.crt": ("coordinator/mt/certificates/ca.crt", "{site}/ca.crt"),
    "fedmt coordinator register mt clinic clinic-node.pub": (
        "{site}/{site}/keys/node.pub",
        "coordinator/{site}-node.pub",
    ),
}
# Whoever is asked for text at the terminal types this.
TYPED = "ja\nnein\n"
# The page shows one site; the second does the same under its own name.
SITES = ["clinic", "court"]


def commands() -> list[str]:
    """The lines of the page's shell blocks, in order, without their comments."""
    lines = [line for _, block in blocks(PAGE, "sh") for line in block.splitlines()]
    return [line.partition("  #")[0].strip() for line in lines if line.strip()]


def named() -> set[str]:
    """The commands in the page's running text."""
    text = re.sub(r"^```.*?^```$", "", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return {word for word in re.findall(r"`([^`\n]+)`", text) if re.match(r"(fedmt|docker|nginx|pip|systemctl) ", word)}


def test_every_command_of_the_page_is_run_or_excepted() -> None:
    found = commands()
    assert {*NOT_RUN, *STAY, *CARRIED} <= set(found), "the tables name what the page no longer has"
    assert all(line in NOT_RUN or line.split()[0] in ("fedmt", "cp") for line in found)
    # What running text names is run in one of the blocks, or excepted.
    assert {word for word in named() if not any(line.startswith(word) for line in found)} == set(NAMED)


class Following:
    """A reader of the page, with a folder for each organisation."""

    def __init__(self, folder: Path, lasting: contextlib.ExitStack) -> None:
        self.folder = folder
        self.lasting = lasting
        self.said: list[str] = []
        names = ["outer", "inner", *SITES]
        self.ports = dict(zip(names, ports(len(names)), strict=True))
        for name in ("coordinator", *SITES):
            (folder / name).mkdir(parents=True)

    def follow(self) -> None:
        for line in commands():
            # What the coordinator does for a site, and what a site does, is done for both, one after the other.
            for site in SITES if "clinic" in line else [""]:
                self.one(line, site)

    def one(self, line: str, site: str) -> None:
        at = "coordinator" if not site or line.startswith("fedmt coordinator") else site
        own = line.replace("clinic", site)
        for told, mine in INSTEAD.items():
            own = own.replace(told, mine.format(outer=self.ports["outer"], own=self.ports.get(site)))
        if line in CARRIED:
            source, target = (self.folder / place.format(site=site) for place in CARRIED[line])
            target.write_bytes(source.read_bytes())
        if line in NOT_RUN:
            self.said.append(f"{at}$ {own}\n[{NOT_RUN[line]}]")
        elif line in STAY:
            self.said.append(f"{at}$ {own}\n{self.stay(own, at, STAY[line])}")
        else:
            self.said.append(f"{at}$ {own}\n{self.run(own, at)}")
        self.also(line)

    def also(self, line: str) -> None:
        """What stands beside the commands."""
        mt = self.folder / "coordinator" / "mt"
        if line.startswith("fedmt coordinator init"):
            # Two tests on one machine: each needs a port of its own inside too.
            settings = (mt / "coordinator.yaml").read_text(encoding="utf-8")
            (mt / "coordinator.yaml").write_text(settings.replace("9093", str(self.ports["inner"])), encoding="utf-8")
        elif line.startswith("cp mt/nginx.conf"):
            proxy = self.lasting.enter_context(proxied(mt / "certificates", self.ports["inner"], self.ports["outer"]))
            proxy.keep = False

    def surroundings(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        return {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "120"}

    def run(self, line: str, at: str) -> str:
        done = subprocess.run(
            ["sh", "-c", line],
            cwd=self.folder / at,
            env=self.surroundings(),
            input=TYPED,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, f"{line}: {done.stdout}"
        if line.startswith("fedmt translate"):
            # What so small an engine makes of a sentence is nothing to compare.
            assert len(done.stdout.splitlines()) == len(TYPED.splitlines())
            return f"[a line for each of {len(TYPED.splitlines())}]"
        return done.stdout

    def stay(self, line: str, at: str, ready: str) -> str:
        log = self.folder / at / f"{line.split()[1]}.log"
        file = self.lasting.enter_context(log.open("wb"))
        process = subprocess.Popen(
            ["sh", "-c", f"exec {line}"], cwd=log.parent, env=self.surroundings(), stdout=file, stderr=file
        )
        self.lasting.callback(process.wait, 60)
        self.lasting.callback(process.terminate)
        until(lambda: ready in log.read_text(encoding="utf-8") or process.poll() is not None)
        found = log.read_text(encoding="utf-8")
        assert process.poll() is None, f"{line}: {found}"
        # What comes later is of the run.
        before, word, after = found.partition(ready)
        return before + word + after.partition("\n")[0]

    def transcript(self) -> str:
        text = "\n".join(block.rstrip() + "\n" for block in self.said)
        text = text.replace(str(self.folder.resolve()), "").replace(str(self.folder), "")
        for name, port in self.ports.items():
            text = re.sub(rf"\b{port}\b", "PORT" if name in SITES else name.upper(), text)
        for pattern, word in VARY:
            text = re.sub(pattern, word, text, flags=re.MULTILINE)
        return "\n".join(in_order(text.split("\n")))


# What differs from one time, or from one machine, to the next. What an engine learnt is for other tests.
VARY = [
    # Whether sites were there before they were asked for.
    (r"^waiting for .*\n", ""),
    (r"\b[0-9a-f]{16,}\b", "HASH"),
    (r"\d{4}-\d\d-\d\d", "DATE"),
    (r"(device|precision|threads): .*", r"\1: …"),
    (r" in \d+:\d\d$", " in TIME"),
    (r"within \d+ s", "within N s"),
    (r"\d+ GB are free", "N GB are free"),
    (r"(?<![\d.])\d+\.\d+(?![\d.])\*{0,2}", "N"),
    (r"\d+ bytes each", "N bytes each"),
    (r"\d+ ([kM]B)$", r"N \1"),
    # Columns are as wide as their figures.
    (r"(?<=\S)  +(?=\S)", "  "),
    (r"──+", "──"),
]


def in_order(lines: list[str]) -> list[str]:
    """Sites answer in any order: what stands side by side about two of them is sorted."""
    for at in range(len(lines) - 1):
        named = [re.match(rf"(.*round \d+), ({'|'.join(SITES)}):", line) for line in lines[at : at + 2]]
        if named[0] and named[1] and named[0][1] == named[1][1]:
            lines[at : at + 2] = sorted(lines[at : at + 2])
    return lines


def texts(folder: Path) -> None:
    """What the page takes to be there: each site's translations, the coordinator's public text, the recipe."""
    for name in SITES:
        units = "".join(
            f'<tu><tuv xml:lang="de"><seg>{source}</seg></tuv><tuv xml:lang="en"><seg>{target}</seg></tuv></tu>\n'
            for source, target in pairs(name, 100)
        )
        (folder / name / "notes.tmx").write_text(
            f'<?xml version="1.0"?>\n<tmx version="1.4"><header srclang="de"/><body>\n{units}</body></tmx>\n',
            encoding="utf-8",
        )
    news = folder / "coordinator" / "news"
    news.mkdir()
    for name, count in (("train", 100), ("dev", 10)):
        for place, code in enumerate(("de", "en")):
            lines = "".join(f"{pair[place]}\n" for pair in pairs(name, count))
            (news / f"{name}.{code}").write_text(lines, encoding="utf-8")
    (_, recipe), *_ = blocks(PAGE, "yaml")
    (folder / "coordinator" / "two.yaml").write_text(recipe, encoding="utf-8")


def pairs(name: str, count: int) -> Iterator[tuple[str, str]]:
    chance = random.Random(name)
    for number in range(count):
        words = ["".join(chance.choices(_SOUNDS, k=2)) for _ in range(4)]
        yield f"{' '.join(words)} {number}", f"{number} {' '.join(reversed(words))}"


def followed(folder: Path) -> str:
    with contextlib.ExitStack() as stack:
        reader = Following(folder, stack)
        texts(folder)
        reader.follow()
        return reader.transcript()


@pytest.mark.timeout(900)
def test_the_page_followed_word_for_word_gives_an_engine(tmp_path: Path) -> None:
    assert followed(tmp_path) == TRANSCRIPT.read_text(encoding="utf-8")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        sys.stdout.write(followed(Path(temporary)))
