"""What every page of ours has: the skeleton that needs nothing else, a section, a figure for screen and telephone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from html import escape
from importlib import resources

__all__ = ["NARROW", "PANEL", "WIDE", "figure", "frame", "section"]

WIDE, NARROW, PANEL = 912.0, 350.0, 286.0


def frame(title: str, eyebrow: str, heading: str, sections: Iterable[str], version: str) -> str:
    """`eyebrow` is markup already; the others are text."""
    styles = [_read("page.css"), _read("studies.css")]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        "script-src 'unsafe-inline'\">\n"
        f"<title>{escape(title)} · fedmt</title>\n<style>\n{''.join(styles)}</style>\n</head>\n<body>\n<header>\n"
        f'<p class="eyebrow">{eyebrow}<button id="theme" type="button" hidden>dark</button></p>\n'
        f"<h1>{escape(heading)}</h1>\n</header>\n<main>\n" + "".join(sections) + "</main>\n"
        f"<footer><p>Made by fedmt {escape(version)}. "
        "This page is whole: it loads nothing from anywhere.</p></footer>\n"
        f'<div id="tip" role="status" hidden></div>\n<script>\n{_read("page.js")}</script>\n</body>\n</html>\n'
    )


def section(title: str, inside: str, lead: str = "") -> str:
    head = f"<h2>{escape(title)}</h2>\n" if title else ""
    said = f'<p class="lead">{escape(lead)}</p>\n' if lead else ""
    return f"<section>\n{head}{said}{inside}\n</section>\n"


def figure(draw: Callable[[float], str]) -> str:
    """Drawn twice, for a screen and for a telephone; the style sheet shows one."""
    return f'<figure class="wide">{draw(WIDE)}</figure><figure class="narrow">{draw(NARROW)}</figure>\n'


def _read(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8")
