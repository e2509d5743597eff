"""Text out of HTML and SGML."""

import html
import re

# A tag begins with a letter behind '<' or '</'. A bare '<', as in "n < 7 and m > 3", is text: a pattern for anything
# between angle brackets would remove what follows.
_TAG = re.compile(r"<!--.*?-->|<[!?][^>]*>|</?[A-Za-z][^>]*>", re.DOTALL)


def strip_tags(markup: str) -> str:
    """Return the text between the tags, with character references resolved; a tag becomes a space."""
    return html.unescape(_TAG.sub(" ", markup))


def elements(markup: str, *names: str) -> list[str]:
    """Return the text of every element of these names, in order; names in any case, attributes allowed."""
    pattern = rf"<({'|'.join(names)})(?:\s[^>]*)?>(.*?)</\1\s*>"
    found = re.findall(pattern, markup, re.DOTALL | re.IGNORECASE)
    return [strip_tags(content).strip() for _name, content in found]
