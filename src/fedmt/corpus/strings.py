"""From a program's strings to plain sentences in two languages. Knows nothing of files, packages or learning.

The policy, the same for every package and both sides:

- Placeholders (`{name}`, `%s`, `%(name)s`, `${name}`, `$name`) stay: they are words of such text. A pair whose sides
  do not hold the same ones is dropped: one side is out of date, or a plural form lacks its number.
- Mnemonics of menus (`_File`, `文件(_F)`) are taken out.
- Character entities become characters. A pair with HTML tags on either side is dropped.
- Paragraphs become pairs of their own if both sides have equally many; line breaks inside a paragraph become spaces.
- A pair without a letter on either side, placeholders aside, is dropped.
- Ambiguous strings (asked for by some packages) are dropped: a heading whose translations say more than it does.
"""

from __future__ import annotations

import html
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from fedmt.corpus.pairs import Pair

__all__ = ["paragraphs", "placeholders", "sentences", "without_ambiguous", "without_mnemonic"]

_PLACEHOLDER = re.compile(
    r"""
      %\([^()%]+\)[#0+-]*\d*(?:\.\d+)?[diouxXeEfFgGcrs]   # %(name)s
    | %(?:\d+\$)?[#0+-]*\d*(?:\.\d+)?[diuxXfgGcrs](?![A-Za-z])   # %s, %2$d, %.1f
    | \$?\{\{?[^{}]*\}?\}                                  # {name}, {{ name }}, ${name}
    | \$[A-Za-z_][A-Za-z_.]*                               # $name
    | %[A-Z_]{3,}%                                         # %NAME%
    """,
    re.VERBOSE,
)
_TAGS = "a|abbr|b|big|blockquote|br|button|center|code|dd|div|dl|dt|em|font|form|h[1-6]|hr|i|img|input|kbd|label|li"
_TAGS += "|link|ol|option|p|pre|s|script|select|small|span|strong|style|sub|sup|svg|table|tbody|td|th|thead|tr|tt|u|ul"
_MARKUP = re.compile(rf"</?(?:{_TAGS})(?:\s[^<>]*)?/?>|</\w+>|<!--", re.IGNORECASE)
_ENTITY = re.compile(r"&(?:#\d+|#x[0-9A-Fa-f]+|[A-Za-z]{2,8});")
_BEHIND = re.compile(r"\s*\(_\w\)")
_MNEMONIC = re.compile(r"_(?=\w)")
_BREAK = re.compile(r"\n[ \t]*\n")


def sentences(messages: Iterable[tuple[str, str]], dropped: Counter[str], mnemonics: bool = False) -> Iterator[Pair]:
    """The pairs that two sides of messages hold; what is left out is counted by rule in `dropped`."""
    for source, target in messages:
        if mnemonics:
            source, target = without_mnemonic(source), without_mnemonic(target)
        sources, targets = paragraphs(source) or [""], paragraphs(target) or [""]
        if any(map(_MARKUP.search, (*sources, *targets))):
            dropped["markup"] += 1
            continue
        if len(sources) != len(targets):
            sources, targets = [" ".join(sources)], [" ".join(targets)]
        for pair in map(Pair, sources, targets):
            if not _has_words(pair.source) or not _has_words(pair.target):
                dropped["no words"] += 1
            elif placeholders(pair.source) != placeholders(pair.target):
                dropped["placeholders differ"] += 1
            else:
                yield pair


def placeholders(text: str) -> list[str]:
    """`$name` and `${name}` are the same placeholder, and so are `{{ name }}` and `{{name}}`."""
    return sorted(re.sub(r"[\s{}$]", "", found) or "{}" for found in _PLACEHOLDER.findall(text))


def paragraphs(text: str) -> list[str]:
    plain = _ENTITY.sub(lambda found: html.unescape(found[0]), text).replace("\r", "")
    return [joined for part in _BREAK.split(plain) if (joined := " ".join(part.split()))]


def without_mnemonic(text: str) -> str:
    """`_File` → `File`, `E_xit` → `Exit`, `文件(_F)` → `文件`; names_with_several underscores stay as they are."""
    text = _BEHIND.sub("", text)
    places = _PLACEHOLDER.split(text)
    if sum(len(_MNEMONIC.findall(part)) for part in places) != 1:
        return text
    held = _PLACEHOLDER.findall(text)
    parts = [_MNEMONIC.sub("", part) for part in places]
    return "".join(part + (held[index] if index < len(held) else "") for index, part in enumerate(parts))


def without_ambiguous(messages: Iterable[tuple[str, str]], dropped: Counter[str]) -> list[tuple[str, str]]:
    """Without those of which one side stands opposite more than two different strings."""
    held = list(messages)
    opposite: tuple[defaultdict[str, set[str]], defaultdict[str, set[str]]] = (defaultdict(set), defaultdict(set))
    for source, target in held:
        opposite[0][source].add(target)
        opposite[1][target].add(source)
    kept = [pair for pair in held if all(len(opposite[side][pair[side]]) <= 2 for side in (0, 1))]
    dropped["ambiguous"] += len(held) - len(kept)
    return kept


def _has_words(text: str) -> bool:
    return any(character.isalpha() for character in _PLACEHOLDER.sub("", text))
