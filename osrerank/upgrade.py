"""Find what to change in settings files, environment variables and model cards of version 0.2."""

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from osrerank._removed import instead_of
from osrerank.errors import ConfigError, ModelLoadError
from osrerank.scoring.locate import locate_here
from osrerank.scoring.model_files import CARD_FILE, read_card, read_json
from osrerank.settings import DEFAULT_MODEL, PREFIX, Settings

PIPELINES = {"mono": "vectors", "mono-duo": "vectors-duo"}
"""A bi-encoder's pipeline in 0.2 -> its name now."""


class UpgradeStep(NamedTuple):
    """One thing to change, and how.

    Attributes:
        where: the variable, or the file with the table or key.
        now: what to write, as a sentence.
    """

    where: str
    now: str


def changes_from_02(variables: Mapping[str, str], model: str | None = None) -> Iterator[UpgradeStep]:
    """Yield what to change in a deployment of 0.2; nothing if it needs no change.

    Args:
        variables: the environment's ``OSRERANK_*`` variables.
        model: the model that is named on the command line.

    Raises:
        ConfigError: the settings file is not TOML.
    """
    for name in sorted(variables):
        if fix := instead_of(name.upper()):
            yield UpgradeStep(name, fix)
    upper = {name.upper(): value for name, value in variables.items()}
    models = {"--model": model} if model else {f"{PREFIX}MODEL": upper.get(f"{PREFIX}MODEL", DEFAULT_MODEL)}
    models[f"{PREFIX}DUO_MODEL"] = upper.get(f"{PREFIX}DUO_MODEL", "")
    for source, name in models.items():
        if fix := instead_of(name):
            yield UpgradeStep(f"{source}={name}", fix)
        yield from _of_card(name)
    named = upper.get(f"{PREFIX}SETTINGS_FILE")
    file = Settings.model_construct(settings_file=Path(named) if named else None).found_file()
    if file is not None:
        yield from _of_file(file, reads_alone=_is_bi_encoder(next(iter(models.values()))))


def _of_card(model: str) -> Iterator[UpgradeStep]:
    """Yield how a model directory's card differs from today's form; such a card is still read."""
    file = Path(model).expanduser() / CARD_FILE
    if not model or not file.is_file() or (content := read_json(file)).get("version") != 1:
        return
    card = read_card(file.parent)
    layout = f" and layout {content['layout']!r}" if "layout" in content else ""
    old = f"kind {content.get('kind', 'mono')!r}{layout}"
    yield UpgradeStep(str(file), f'it is read as it is; today\'s has "version": 2 and "kind": "{card.kind}" for {old}')


def _of_file(file: Path, *, reads_alone: bool) -> Iterator[UpgradeStep]:
    try:
        content = tomllib.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{file} cannot be read as TOML: {error}", setting="settings_file", source=str(file)
        ) from None
    tables: dict[str, Any] = {"[rerank]": content.get("rerank", {})}
    tables |= {f'[index."{name}".rerank]': table.get("rerank", {}) for name, table in content.get("index", {}).items()}
    for table, options in tables.items():
        for name, value in options.items():
            where = f"{file} {table} {name}"
            if fix := instead_of(f"rerank.{name}"):
                yield UpgradeStep(where, fix)
            elif name == "pipeline" and reads_alone and value in PIPELINES:
                yield UpgradeStep(f'{where} = "{value}"', f'write "{PIPELINES[value]}": the model is a bi-encoder')


def _is_bi_encoder(model: str) -> bool:
    successor = instead_of(model)
    directory = locate_here(DEFAULT_MODEL if successor else model)
    try:
        return directory is not None and read_card(directory).is_encoder
    except ModelLoadError:
        return False
