"""Replace the markup of HTML texts with blanks: tags, comments, scripts and styles.

A text counts as HTML if it begins with an HTML tag, a comment or a doctype and has a closing tag such as ``</p>``, or
if it has three closing tags. ``a < b``, ``List<String>`` and tags of other languages do not make a text HTML.

This module uses regular expressions that read each character once or twice. Documents may be malicious, and Python's
html.parser takes minutes for 100,000 characters of unclosed tags.
"""

import re
from collections.abc import Sequence
from html import unescape
from itertools import islice

from osrerank.types import Candidate, Section
from osrerank.types.values import is_blank

MIN_CLOSING_TAGS = 3
"""The number of closing tags that make a text HTML, whatever it begins with."""
_TAG_NAMES = (
    "a|abbr|address|article|aside|audio|b|blockquote|body|button|caption|center|cite|code|dd|del|details|dfn|div|dl|dt"
    "|em|fieldset|figcaption|figure|font|footer|form|h[1-6]|head|header|html|i|iframe|ins|kbd|label|legend|li|main|mark"
    "|nav|noscript|ol|option|p|pre|q|s|samp|script|section|select|small|span|strike|strong|style|sub|summary|sup|table"
    "|tbody|td|template|textarea|tfoot|th|thead|time|title|tr|tt|u|ul|var|video"
)
_BEGINNING = re.compile(
    rf"\s*<(?:!--|!doctype\s+html\b|(?:{_TAG_NAMES}|br|hr|img|input|link|meta)(?=[\s/>]))", re.IGNORECASE
)
_CLOSING_TAG = re.compile(rf"</(?:{_TAG_NAMES})\s*>", re.IGNORECASE)
# The alternatives are comments, scripts and styles, tags with quoted attributes, and other tags. No tag contains a "<",
# so the scan of an unclosed tag ends at the next "<", and the time is linear in the length of the text.
_MARKUP = re.compile(
    r"<!--.*?(?:-->|\Z)"
    r"|<(script|style)\b[^<>]*>.*?(?:</\1\s*>|\Z)"
    r"|</?[a-z](?:[^<>\"']|\"[^\"<]*\"|'[^'<]*')*>"
    r"|<[!?/a-z][^<>]*>",
    re.IGNORECASE | re.DOTALL,
)


def is_html(text: str) -> bool:
    """Return whether a text is HTML, as the module's docstring defines it."""
    if "</" not in text:
        return False
    minimum = 1 if _BEGINNING.match(text) else MIN_CLOSING_TAGS
    first_tags = islice(_CLOSING_TAG.finditer(text), minimum)
    return sum(1 for _ in first_tags) == minimum


def without_markup(text: str) -> str:
    """Return an HTML text with blanks for its markup, such as "   bold    " for "<b>bold</b>".

    The length is unchanged, so that the spans of words are the same in both texts. Character references such as
    ``&amp;`` stay.
    """
    return blank_out(text, _MARKUP)


def blank_out(text: str, pattern: re.Pattern[str]) -> str:
    """Return a text of the same length with blanks in place of all matches of a pattern."""
    return pattern.sub(lambda match: " " * (match.end() - match.start()), text)


def lacks_text(candidate: Candidate) -> bool:
    """Return whether a candidate has no text, a blank text, or HTML without words."""
    if is_blank(candidate.text):
        return True
    return has_html(candidate) and all(_lacks_words(section.text) for section in read_sections(candidate))


def _lacks_words(text: str) -> bool:
    if not is_html(text):
        return is_blank(text)
    offset = 0
    for match in _MARKUP.finditer(text):  # the first words are usually near the beginning, so this loop ends early
        if not is_blank(unescape(text[offset : match.start()])):
            return False
        offset = match.end()
    return is_blank(unescape(text[offset:]))


def has_html(candidate: Candidate) -> bool:
    """Return whether one of a candidate's texts is HTML."""
    if candidate.text is None or "<" not in candidate.text:  # a search for one character is much faster than for "</"
        return False
    return any(is_html(section.text) for section in read_sections(candidate))


def read_sections(candidate: Candidate) -> Sequence[Section]:
    """Return a candidate's sections, or its text as a single section if it has none."""
    return candidate.sections or (Section("text", candidate.text or ""),)


def without_html(candidate: Candidate) -> Candidate:
    """Return a candidate with blanks for the markup of its HTML texts. If it has no HTML, return the same object."""
    if not has_html(candidate):
        return candidate
    text, sections = candidate.text or "", []
    for section in read_sections(candidate):
        blanked = section._replace(text=without_markup(section.text)) if is_html(section.text) else section
        text = text.replace(section.text, blanked.text, 1)  # the candidate's text consists of its sections
        sections.append(blanked)
    return candidate._replace(text=text, sections=tuple(sections))


def model_text(candidate: Candidate) -> str:
    """Return a candidate's whole text as a model gets it: "bread & butter" for "<p>bread &amp; butter</p>"."""
    blanked = without_html(candidate)
    if blanked is candidate:  # the candidate has no HTML
        return candidate.text or ""
    return " ".join(unescape(blanked.text or "").split())
