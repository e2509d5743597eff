"""What the docstrings of options' classes say of each option, for the reference page and the command line's help."""

import re
import sys
import textwrap


def descriptions(one: type) -> dict[str, str]:
    """Return what a class's docstring says of each attribute, on one line; nothing with ``python -OO``.

    Raises:
        ValueError: the docstring has no section ``Attributes``.
    """
    if sys.flags.optimize > 1:
        return {}
    text = textwrap.dedent("    " + (one.__doc__ or ""))
    _, found, section = text.partition("Attributes:\n")
    if not found:
        raise ValueError(f"{one.__name__}: the docstring has no section Attributes")
    entries = re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE)
    return {name: " ".join(said.split()).replace("``", "`") for name, said in entries}


def first_sentence(said: str) -> str:
    """Return the first sentence of a description, as people read it in a terminal; "" for none."""
    if not said:
        return ""
    plain = re.sub(r'`"?([^`"]*)"?`', r"\1", said)
    sentence = re.split(r"(?<=\.) |; ", plain, maxsplit=1)[0].rstrip(".")
    return f"{sentence[:1].upper()}{sentence[1:]}."
