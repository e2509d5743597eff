"""The default options and models of searches with ``rerank=True``, for the client and for each index."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from osrerank.errors import ConfigError
from osrerank.options.index_names import applying_names
from osrerank.options.rerank import Rerank, RerankOptions
from osrerank.settings import Settings
from osrerank.settings_file import read_file

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Defaults:
    """The options and models that ``rerank=True`` means, for the client and for each index.

    Attributes:
        base: the options of all indices without options of their own.
        by_index: name or pattern (``logs-*``) of an index -> its options. An exact name wins, else the longest pattern.
        models: name or pattern of an index, which wins likewise -> its model; other indices have the client's model.
    """

    base: Rerank = field(default_factory=Rerank)
    by_index: Mapping[str, Rerank] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for options in (self.base, *self.by_index.values()):
            if options.interleave is not None:
                reason = "interleave names one user's session, so it cannot be a default: pass it with each search"
                raise ConfigError(reason, setting="rerank.interleave", source="argument")
            if options.traffic is not None and options.traffic.key is not None:
                reason = "traffic.key names one user's session, so it cannot be a default: pass it with each search"
                raise ConfigError(reason, setting="rerank.traffic.key", source="argument")

    def of(self, index: Any) -> Rerank:
        """Return the options of an index; of several indices, their common options or, if these differ, the base."""
        if not self.by_index:
            return self.base
        names = applying_names(index, self.by_index)
        options = {self.base if name is None else self.by_index[name] for name in names}
        return options.pop() if len(options) == 1 else self.base

    def models_of(self, index: Any) -> set[str | None]:
        """Return the models of a search's indices, with None for the client's model."""
        return {None if name is None else self.models[name] for name in applying_names(index, self.models)}

    def without_models(self, override: str) -> Self:
        """Return these defaults without models, because the caller's model or scorer applies to every index.

        Args:
            override: a description of the caller's model or scorer, for the log.
        """
        if self.models:
            logger.info("%s applies to every index: the settings file's models are not used", override)
        return replace(self, models={})

    def for_all(self) -> Self:
        """Return these defaults without ``traffic``, so that every search is reranked."""
        by_index = {name: replace(options, traffic=None) for name, options in self.by_index.items()}
        return replace(self, base=replace(self.base, traffic=None), by_index=by_index)

    @classmethod
    def load(cls, settings: Settings, over: Rerank | RerankOptions | None = None, *, model: str | None = None) -> Self:
        """Read the defaults from the settings file that the settings name, else from the one that is found.

        Args:
            settings: the settings, which may name the file.
            over: the options that override the file's ``[rerank]``.
            model: the model of every index, which overrides the file's models; None for the file's models.

        Raises:
            ConfigError: the file cannot be read, or has a key or value that cannot be used.
        """
        file = settings.find_settings_file()
        content = read_file(file) if file else {}
        if file and not settings.settings_file:
            logger.info("rerank=True takes its options from %s", file.absolute())
        base = _options(content.get("rerank", {}), Rerank(), f"{file} [rerank]")
        if over is not None:
            base = Rerank.of(over, base) or base
        tables = content.get("index", {})
        by_index = {
            name: _options(table["rerank"], base, f"{file} [index.{name!r}.rerank]")
            for name, table in tables.items()
            if "rerank" in table
        }
        models = {name: table["model"] for name, table in tables.items() if "model" in table}
        loaded = cls(base, by_index, models)
        return loaded if model is None else loaded.without_models(f"the model {model}")


def _options(table: Mapping[str, Any], base: Rerank, source: str) -> Rerank:
    try:
        return Rerank.of(table, base) or base
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}", setting=error.setting, source=source) from None
