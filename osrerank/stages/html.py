"""Blank out the markup of texts that are HTML: tags, comments, scripts and styles.

A text is HTML if it begins with a tag of HTML, a comment or a doctype and has a closing tag such as ``</p>``, or if it
has three closing tags. ``a < b``, ``List<String>`` and the tags of other languages are no HTML.

Python's html.parser takes minutes for 100,000 characters of unclosed tags, and a search reads what others have written;
the pattern here reads each character once or twice.
"""

import re
from html import unescape
from itertools import islice

from osrerank.types import Candidate, Section
from osrerank.types.values import is_blank

CLOSING = 3
"""Closing tags by which a text is HTML, however it begins."""
_NAMES = (
    "a|abbr|address|article|aside|audio|b|blockquote|body|button|caption|center|cite|code|dd|del|details|dfn|div|dl|dt"
    "|em|fieldset|figcaption|figure|font|footer|form|h[1-6]|head|header|html|i|iframe|ins|kbd|label|legend|li|main|mark"
    "|nav|noscript|ol|option|p|pre|q|s|samp|script|section|select|small|span|strike|strong|style|sub|summary|sup|table"
    "|tbody|td|template|textarea|tfoot|th|thead|time|title|tr|tt|u|ul|var|video"
)
_BEGIN = re.compile(rf"\s*<(?:!--|!doctype\s+html\b|(?:{_NAMES}|br|hr|img|input|link|meta)(?=[\s/>]))", re.IGNORECASE)
_CLOSING = re.compile(rf"</(?:{_NAMES})\s*>", re.IGNORECASE)
# No part can begin anew inside what it has read in vain, so that the time grows with the length of the text.
_MARKUP = re.compile(
    r"<!--.*?(?:-->|\Z)"
    r"|<(script|style)\b[^<>]*>.*?(?:</\1\s*>|\Z)"
    r"|</?[a-z](?:[^<>\"']|\"[^\"<]*\"|'[^'<]*')*>"
    r"|<[!?/a-z][^<>]*>",
    re.IGNORECASE | re.DOTALL,
)


def is_html(text: str) -> bool:
    """Return whether a text is HTML, by the rule above."""
    if "</" not in text:
        return False
    least = 1 if _BEGIN.match(text) else CLOSING
    return sum(1 for _ in islice(_CLOSING.finditer(text), least)) == least


def without_markup(text: str) -> str:
    """Return an HTML text with blanks in place of its markup, as long as before, so that spans hold for both.

    Character references such as ``&amp;`` stay.
    """
    return blanked(text, _MARKUP)


def blanked(text: str, pattern: re.Pattern[str]) -> str:
    """Return a text with blanks in place of what a pattern matches, as long as before."""
    return pattern.sub(lambda match: " " * (match.end() - match.start()), text)


def lacks_text(candidate: Candidate) -> bool:
    """Return whether a candidate has nothing to read: no text, a blank one, or HTML without words."""
    text = candidate.text
    if text is None or is_blank(text):
        return True
    return "</" in text and all(_is_blank(part.text) for part in candidate.sections or (Section("text", text),))


def _is_blank(text: str) -> bool:
    if not is_html(text):
        return is_blank(text)
    at = 0
    for match in _MARKUP.finditer(text):  # the first words are near the beginning
        if not is_blank(unescape(text[at : match.start()])):
            return False
        at = match.end()
    return is_blank(unescape(text[at:]))


def has_html(candidate: Candidate) -> bool:
    """Return whether one of a candidate's texts is HTML."""
    text = candidate.text
    if text is None or "</" not in text:
        return False
    return any(is_html(part.text) for part in candidate.sections or (Section("text", text),))


def shown(candidate: Candidate) -> Candidate:
    """Return a candidate with the markup of its HTML texts blanked out; the candidate itself if none is HTML."""
    text = candidate.text or ""
    if not has_html(candidate):
        return candidate
    raw = candidate.sections or (Section("text", text),)
    sections = tuple(
        section._replace(text=without_markup(section.text)) if is_html(section.text) else section for section in raw
    )
    for before, after in zip(raw, sections, strict=True):
        text = text.replace(before.text, after.text, 1)
    return candidate._replace(text=text, sections=sections)


def model_text(candidate: Candidate) -> str:
    """Return a candidate's whole text as a model reads it: HTML texts without markup and character references."""
    seen = shown(candidate)
    return (candidate.text or "") if seen is candidate else " ".join(unescape(seen.text or "").split())
