"""Extract text from documents in HTML and SGML."""

import html
import re

# A tag has a letter after '<' or '</'. A pattern for anything between angle brackets would remove text from
# "n < 7 and m > 3".
_TAG = re.compile(r"<!--.*?-->|<[!?][^>]*>|</?[A-Za-z][^>]*>", re.DOTALL)


def strip_tags(markup: str) -> str:
    """Replace each tag by a space, and resolve character references."""
    return html.unescape(_TAG.sub(" ", markup))


def extract_elements(markup: str, *names: str) -> list[str]:
    """Return the texts of all elements with these names, in order. Case and attributes are ignored."""
    pattern = rf"<({'|'.join(names)})(?:\s[^>]*)?>(.*?)</\1\s*>"
    matches = re.findall(pattern, markup, re.DOTALL | re.IGNORECASE)
    return [strip_tags(content).strip() for _name, content in matches]
