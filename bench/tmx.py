"""How fast, and in how much memory, a translation memory is read: fedmt against a bare `lxml.iterparse`.

    python bench/tmx.py [--segments 1000000] [--runs 3] [--json]

The file is made first, in a temporary folder. Both readers then go over it in turns, each run in a process of its own,
so that what else the machine does falls on both alike and no run's memory is another's. Bare means that nothing is
made of the elements: each is cleared as it ends, either all of them or, faster, the units alone. Memory is the peak
resident size over the imports' own, at the full size and at a tenth of it.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

READERS = {
    "fedmt": "pairs of fedmt.corpus.tmx",
    "all": "lxml.iterparse, each element cleared",
    "units": "lxml.iterparse(tag='tu'), each unit cleared",
}
_TEXTS = {
    "de": "die Datei konnte nicht gelesen werden weil der Server heute keine Verbindung zum Verzeichnis hat",
    "en": "the file could not be read because the server has no connection to the directory today",
}


def make(path: Path, segments: int) -> None:
    """Units like those of a real memory: attributes, a property, now and then an inline code."""
    with path.open("w", encoding="utf-8") as file:
        file.write(
            '<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n<tmx version="1.4">\n'
            '<header creationtool="bench" creationtoolversion="1" segtype="sentence" o-tmf="x" adminlang="en" '
            'srclang="de" datatype="plaintext"/>\n<body>\n'
        )
        for number in range(segments):
            file.write(f'<tu tuid="{number}">\n')
            for code, sentence in _TEXTS.items():
                words = sentence.split()
                turn = number % len(words)
                text = " ".join(words[turn:] + words[:turn])
                if number % 10 == 0:
                    text = f'<bpt i="1">&lt;b&gt;</bpt>{text}<ept i="1">&lt;/b&gt;</ept> &amp; more'
                file.write(f'  <tuv xml:lang="{code}">\n    <seg>{text} ({number}).</seg>\n  </tuv>\n')
            file.write("</tu>\n")
        file.write("</body>\n</tmx>\n")


def read(path: Path, reader: str) -> dict[str, float]:
    """One run, in this process: CPU seconds (all use one core), the count, and the peak of memory over the imports'."""
    from lxml import etree

    from fedmt.corpus import tmx
    from fedmt.corpus.pairs import Direction

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    count = 0
    if reader == "fedmt":
        for _ in tmx.pairs(path, Direction("de", "en")):
            count += 1
    else:
        for _, element in etree.iterparse(str(path), tag="tu" if reader == "units" else None):
            element.clear()
            count += 1
    seconds = time.process_time() - start
    return {
        "seconds": seconds,
        "count": count,
        "mb": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024,
    }


def apart(path: Path, reader: str) -> dict[str, float]:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--read", str(path), "--reader", reader]
    answer: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return answer


@dataclass
class Result:
    segments: int
    bytes: int
    seconds: dict[str, float]
    ratio: dict[str, float]
    mb: dict[int, float]


def measure(segments: int, runs: int) -> Result:
    with tempfile.TemporaryDirectory() as name:
        large, small = Path(name, "large.tmx"), Path(name, "small.tmx")
        make(large, segments)
        make(small, segments // 10)
        turns: dict[str, list[dict[str, float]]] = {reader: [] for reader in READERS}
        for _ in range(runs):
            for reader, done in turns.items():
                done.append(apart(large, reader))
        assert all(turn["count"] == segments for turn in turns["fedmt"])
        seconds = {reader: statistics.median(turn["seconds"] for turn in done) for reader, done in turns.items()}
        ratio = {reader: seconds[reader] / seconds["fedmt"] for reader in ("all", "units")}
        peaks = {segments // 10: apart(small, "fedmt")["mb"], segments: max(turn["mb"] for turn in turns["fedmt"])}
        return Result(segments, large.stat().st_size, seconds, ratio, peaks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--segments", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--reader", choices=READERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        print(json.dumps(read(options.read, options.reader)))
        return
    result = measure(options.segments, options.runs)
    if options.json:
        print(json.dumps(asdict(result)))
        return
    print(f"{result.segments:,} segments, {result.bytes / 1e6:,.0f} MB; medians of {options.runs} runs in turns")
    for reader, what in READERS.items():
        of = "" if reader == "fedmt" else f"   fedmt reads at {result.ratio[reader]:.2f} × its speed (aim: 0.5)"
        print(f"{result.seconds[reader]:8.2f} s of CPU  {what}{of}")
    for size, peak in result.mb.items():
        print(f"{peak:8.1f} MB over the imports, reading {size:,} segments")


if __name__ == "__main__":
    main()
