"""Generate docs/reference.md from the docstrings and defaults of the options and settings.

python tools/pages/reference_page.py > docs/reference.md
"""

import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr

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


Row = tuple[str, str, str]
"""A name, a default value and a description."""


def render_page() -> str:
    """Return the page as Markdown."""
    parts = [INTRODUCTION, _table("option", _dataclass_rows(Rerank))]
    for name, (group, *_) in GROUPS.items():
        summary = (group.__doc__ or "").partition("\n")[0]
        parts += [f"### `{name}`\n\n{summary}\n", _table("option", _dataclass_rows(group))]
    variables = ((f"{PREFIX}{name.upper()}", default, meaning) for name, default, meaning in _model_rows(Settings))
    parts += [SETTINGS, _table("variable", variables)]
    return "\n".join([*parts, HTTP, _table("key", _model_rows(HttpSettings))])


def _dataclass_rows(options_class: Any) -> Iterator[Row]:
    """Yield a row for each field of a dataclass.

    Raises:
        KeyError: the docstring does not describe a field.
    """
    descriptions = read_descriptions(options_class)
    for field in dataclasses.fields(options_class):
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        text = f"{type(default).__name__}()" if dataclasses.is_dataclass(default) else repr(default)
        yield field.name, text, descriptions[field.name]


def _model_rows(model: type[BaseModel]) -> Iterator[Row]:
    """Yield a row for each field of a pydantic model."""
    descriptions = read_descriptions(model)
    for name, field in model.model_fields.items():
        default = field.get_default(call_default_factory=True)
        if isinstance(default, SecretStr):
            default = default.get_secret_value()
        if isinstance(default, str | Path):
            default = str(default).replace(str(Path.home()), "~")
        yield name, repr(default), descriptions[name]


def _table(heading: str, rows: Iterable[Row]) -> str:
    lines = [f"| `{name}` | `{default}` | {description} |" for name, default, description in rows]
    return "\n".join([f"| {heading} | default | meaning |", "|---|---|---|", *lines, ""])


if __name__ == "__main__":
    print(render_page(), end="")
