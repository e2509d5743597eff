"""Extract text from HTML and SGML."""

import html
import re

# A tag begins with a letter after '<' or '</'. A bare '<', as in "n < 7 and m > 3", is text: a pattern for anything
# between angle brackets would remove the text after it.
_TAG = re.compile(r"<!--.*?-->|<[!?][^>]*>|</?[A-Za-z][^>]*>", re.DOTALL)


def strip_tags(markup: str) -> str:
    """Return the text between the tags, with character references resolved; a tag becomes a space."""
    return html.unescape(_TAG.sub(" ", markup))


def elements(markup: str, *names: str) -> list[str]:
    """Return the text of every element with one of these names, in order; case and attributes do not matter."""
    pattern = rf"<({'|'.join(names)})(?:\s[^>]*)?>(.*?)</\1\s*>"
    matches = re.findall(pattern, markup, re.DOTALL | re.IGNORECASE)
    return [strip_tags(content).strip() for _name, content in matches]
