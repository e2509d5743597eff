"""Write docs/reference.md from the docstrings and defaults of the options and settings.

python tools/pages/reference_page.py > docs/reference.md
"""

import dataclasses
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import SecretStr
from pydantic_settings import BaseSettings

from osrerank.options.cutoff import Cutoff
from osrerank.options.interleave import Interleave
from osrerank.options.pairs import Pairs
from osrerank.options.passages import Passages
from osrerank.options.rerank import Rerank
from osrerank.options.rm3 import Rm3
from osrerank.options.sentences import Sentences
from osrerank.options.traffic import Traffic
from osrerank.settings import PREFIX, SECRETS_DIR, Settings

INTRODUCTION = """# Options and settings

Made by `tools/pages/reference_page.py` from the code.

## Options of a search

`client.search(..., rerank={"depth": 50})`, or `rerank=Rerank(depth=50)` from `osrerank`. `rerank=True` takes the
defaults, or what the [settings file](#settings) says under `[rerank]`. An unknown option, or a value out of its range,
raises `ConfigError` with the option's name.
"""
PARTS = {
    "cutoff": (Cutoff, "`cutoff`: where the list ends"),
    "interleave": (Interleave, "`interleave`: two rankings on one page"),
    "pairs": (Pairs, "`pairs`: duoBERT's pairs"),
    "passages": (Passages, "`passages`: long documents"),
    "sentences": (Sentences, "`sentences`: Birch"),
    "rm3": (Rm3, "`rm3`: feedback"),
    "traffic": (Traffic, "`traffic`: a share of the searches, and shadow mode"),
}
SETTINGS = f"""## Settings

Each setting is an argument of `connect`, an environment variable, and for most commands a [flag](cli.md). An argument
or flag wins over the variable, and the variable over the default. A file of the folder that `{SECRETS_DIR}` names
can hold a setting too, `{PREFIX.lower()}redis_url` for instance, as Docker and Kubernetes mount secrets. An unknown
`{PREFIX}*` variable is an error.
"""


def page() -> str:
    """Return the page."""
    parts = [INTRODUCTION, _table("option", _options(Rerank))]
    for part, heading in PARTS.values():
        parts += [f"### {heading}\n", _table("option", _options(part))]
    return "\n".join([*parts, SETTINGS, _table("variable", _settings(Settings))])


def descriptions(one: type) -> dict[str, str]:
    """Return what a class's docstring says of each attribute, on one line.

    Raises:
        ValueError: the docstring has no section ``Attributes``.
    """
    text = textwrap.dedent("    " + (one.__doc__ or ""))
    _, found, section = text.partition("Attributes:\n")
    if not found:
        raise ValueError(f"{one.__name__}: the docstring has no section Attributes")
    entries = re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE)
    return {name: " ".join(said.split()).replace("``", "`") for name, said in entries}


def _options(one: Any) -> Iterator[tuple[str, str, str]]:
    """Yield the name, default and description of each field.

    Raises:
        KeyError: the docstring does not describe a field.
    """
    said = descriptions(one)
    for entry in dataclasses.fields(one):
        default = entry.default
        if entry.default_factory is not dataclasses.MISSING:
            default = entry.default_factory()
        shown = repr(default) if entry.name not in PARTS or default is None else f"{type(default).__name__}()"
        yield entry.name, shown, said[entry.name]


def _settings(one: type[BaseSettings]) -> Iterator[tuple[str, str, str]]:
    said = descriptions(one)
    for name, entry in one.model_fields.items():
        default = entry.get_default(call_default_factory=True)
        if isinstance(default, SecretStr):
            default = default.get_secret_value()
        if isinstance(default, str | Path):
            default = str(default).replace(str(Path.home()), "~")
        yield f"{PREFIX}{name.upper()}", repr(default), said[name]


def _table(what: str, rows: Iterator[tuple[str, str, str]]) -> str:
    lines = [f"| `{name}` | `{default}` | {said} |" for name, default, said in rows]
    return "\n".join([f"| {what} | default | meaning |", "|---|---|---|", *lines, ""])


if __name__ == "__main__":
    print(page(), end="")
