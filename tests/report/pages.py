"""What tests ask of a page."""

from __future__ import annotations

from typing import Any

from lxml import html


def find(page: str, xpath: str) -> list[Any]:
    found = html.fromstring(page).xpath(xpath)
    assert isinstance(found, list)
    return found


def texts(page: str, xpath: str) -> list[str]:
    return [element.text_content() for element in find(page, xpath)]
