"""Write docs/reference.md from the docstrings and defaults of the options and settings.

python tools/pages/reference_page.py > docs/reference.md
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr
from pydantic_settings import BaseSettings

from osrerank.options.descriptions import read_descriptions
from osrerank.options.rerank import GROUPS, Rerank
from osrerank.settings import PREFIX, SECRETS_DIR, Settings
from osrerank.settings_file import HttpSettings

INTRODUCTION = """# Options and settings

Made by `tools/pages/reference_page.py` from the code.

## Options of a search

`client.search(..., rerank={"depth": 50})`, or `rerank=Rerank(depth=50)` from `osrerank`. `rerank=True` takes the
defaults, or what the [settings file](#settings) says under `[rerank]`. An unknown option, or a value out of its range,
raises `ConfigError` with the option's name.
"""
SETTINGS = f"""## Settings

Each setting is an argument of `connect`, an environment variable, and for most commands a [flag](cli.md). An argument
or flag wins over the variable, and the variable over the default. A file of the folder that `{SECRETS_DIR}` names
can hold a setting too, `{PREFIX.lower()}redis_url` for instance, as Docker and Kubernetes mount secrets. An unknown
`{PREFIX}*` variable is an error.
"""
HTTP = """### `[http]` of the settings file

The [rerank server](rerank-servers.md) of the backend `http`.
"""


def page() -> str:
    """Return the page."""
    parts = [INTRODUCTION, _table("option", _options(Rerank))]
    for name, (part, *_) in GROUPS.items():
        meaning = (part.__doc__ or "").partition("\n")[0]
        parts += [f"### `{name}`\n\n{meaning}\n", _table("option", _options(part))]
    parts += [SETTINGS, _table("variable", _settings(Settings))]
    return "\n".join([*parts, HTTP, _table("key", _entries(HttpSettings))])


def _options(one: Any) -> Iterator[tuple[str, str, str]]:
    """Yield the name, default and description of each field.

    Raises:
        KeyError: the docstring does not describe a field.
    """
    said = read_descriptions(one)
    for entry in dataclasses.fields(one):
        default = entry.default
        if entry.default_factory is not dataclasses.MISSING:
            default = entry.default_factory()
        shown = f"{type(default).__name__}()" if dataclasses.is_dataclass(default) else repr(default)
        yield entry.name, shown, said[entry.name]


def _settings(one: type[BaseSettings]) -> Iterator[tuple[str, str, str]]:
    yield from ((f"{PREFIX}{name.upper()}", default, said) for name, default, said in _entries(one))


def _entries(one: type[BaseModel]) -> Iterator[tuple[str, str, str]]:
    said = read_descriptions(one)
    for name, entry in one.model_fields.items():
        default = entry.get_default(call_default_factory=True)
        if isinstance(default, SecretStr):
            default = default.get_secret_value()
        if isinstance(default, str | Path):
            default = str(default).replace(str(Path.home()), "~")
        yield name, repr(default), said[name]


def _table(what: str, rows: Iterator[tuple[str, str, str]]) -> str:
    lines = [f"| `{name}` | `{default}` | {said} |" for name, default, said in rows]
    return "\n".join([f"| {what} | default | meaning |", "|---|---|---|", *lines, ""])


if __name__ == "__main__":
    print(page(), end="")
