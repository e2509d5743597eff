"""What ``rerank=True`` means: for the client, and for each index."""

import logging
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Self

from osrerank.errors import ConfigError
from osrerank.options.rerank import Rerank, RerankOptions
from osrerank.settings import Settings

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Defaults:
    """Options of a search that gives none.

    Attributes:
        base: of every index without its own.
        by_index: index name or pattern (``logs-*``) -> its own; the first that fits holds.
    """

    base: Rerank = field(default_factory=Rerank)
    by_index: Mapping[str, Rerank] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for options in (self.base, *self.by_index.values()):
            if options.interleave is not None:
                reason = "interleave has the key of one session and cannot be a default: give it in the search"
                raise ConfigError(reason, setting="rerank.interleave", source="argument")
            if options.share_key is not None:
                reason = "share_key is the key of one session and cannot be a default: give it in the search"
                raise ConfigError(reason, setting="rerank.share_key", source="argument")

    def of(self, index: Any) -> Rerank:
        """Return the options of an index; of several indexes only when all of them have the same."""
        if not self.by_index:
            return self.base
        names = index.split(",") if isinstance(index, str) else list(index or [])
        found = {self._of_one(str(name)) for name in names}
        return found.pop() if len(found) == 1 else self.base

    def for_all(self) -> Self:
        """Return these without ``share`` and ``shadow``: what measures reranking reranks every search."""
        by_index = {name: replace(options, share=None, shadow=False) for name, options in self.by_index.items()}
        return type(self)(replace(self.base, share=None, shadow=False), by_index)

    def _of_one(self, name: str) -> Rerank:
        return next((options for pattern, options in self.by_index.items() if fnmatchcase(name, pattern)), self.base)

    @classmethod
    def load(cls, settings: Settings, over: Rerank | RerankOptions | None = None) -> Self:
        """Read the settings file: the one that is set, else the one that is found.

        Args:
            settings: may name the file.
            over: options that hold over the file's ``[rerank]``.

        Raises:
            ConfigError: the file cannot be read, or has a key or value that cannot be used.
        """
        file = settings.found_file()
        content = _read(file) if file else {}
        if file and not settings.settings_file:
            logger.info("what rerank=True means is read from %s", file.absolute())
        base = _options(content.get("rerank", {}), Rerank(), f"{file} [rerank]")
        if over is not None:
            base = Rerank.of(over, base) or base
        by_index = {
            name: _options(table["rerank"], base, f"{file} [index.{name!r}.rerank]")
            for name, table in content.get("index", {}).items()
        }
        return cls(base, by_index)


def _read(path: Path) -> dict[str, Any]:
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(
            f"the settings file {path} cannot be read: {error.strerror}", setting="settings_file", source=str(path)
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the settings file {path} is not TOML: {error}", setting="settings_file", source=str(path)
        ) from None
    _check_tables(content, path)
    return content


def _check_tables(content: Mapping[str, Any], path: Path) -> None:
    """Refuse a file with anything but the tables [rerank] and [index.NAME.rerank]."""
    indexes = content.get("index", {})
    wrong = [key for key in content if key not in ("rerank", "index")]
    if not isinstance(indexes, Mapping):
        wrong.append("index")
    else:
        wrong += [
            f"index.{name}"
            for name, table in indexes.items()
            if not isinstance(table, Mapping) or list(table) != ["rerank"]
        ]
    if wrong:
        raise ConfigError(
            f"the settings file {path} has {wrong[0]!r}; what it may have are [rerank] and [index.NAME.rerank]",
            setting=wrong[0],
            source=str(path),
        )


def _options(table: Mapping[str, Any], over: Rerank, source: str) -> Rerank:
    try:
        return Rerank.of(table, over) or over
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}", setting=error.setting, source=source) from None
