"""Read the descriptions of options from docstrings, for the page docs/reference.md and the help of commands."""

import re
import sys
import textwrap


def read_descriptions(options: type) -> dict[str, str]:
    """Return the descriptions in the section ``Attributes`` of a class's docstring, by attribute.

    Line breaks are removed, and double backquotes become single ones: ``{"share": "the share of the searches ..."}``.
    The result is empty under ``python -OO``, which removes docstrings.

    Raises:
        ValueError: the docstring does not contain a section ``Attributes``.
    """
    if sys.flags.optimize > 1:
        return {}
    text = textwrap.dedent("    " + (options.__doc__ or ""))  # indents the first line like the others
    _, heading, section = text.partition("Attributes:\n")
    if not heading:
        raise ValueError(f"the docstring of {options.__name__} has no section Attributes")
    entries = re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE)
    return {name: " ".join(description.split()).replace("``", "`") for name, description in entries}


def first_sentence(description: str) -> str:
    """Return a description's first sentence for the help of a command.

    It is "The limit, or None." for "the limit, or `None`; ...".
    """
    if not description:
        return ""
    unquoted = re.sub(r'`"?([^`"]*)"?`', r"\1", description)  # `x` and `"x"` become x
    sentence = re.split(r"(?<=\.) |; ", unquoted, maxsplit=1)[0].rstrip(".")
    return f"{sentence[:1].upper()}{sentence[1:]}."
