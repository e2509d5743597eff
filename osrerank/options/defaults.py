"""Each index's default rerank options and model, from the settings file and the arguments of the client."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from osrerank.errors import ConfigError
from osrerank.options.index_names import match_names
from osrerank.options.rerank import Rerank, RerankOptions
from osrerank.settings import Settings
from osrerank.settings_file import read_file

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Defaults:
    """The rerank options and models of searches that do not specify any.

    An index's exact name takes precedence over patterns (``logs-*``), and a longer pattern over a shorter one.

    Attributes:
        base: the options of all indices that ``by_index`` does not list, and of searches over several indices with
            different options.
        by_index: options by index name or pattern, such as ``{"logs-*": Rerank(depth=50)}``.
        models: models by index name or pattern, such as ``{"logs-*": "e5-small"}``. All other indices use the client's
            model.
    """

    base: Rerank = field(default_factory=Rerank)
    by_index: Mapping[str, Rerank] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for options in (self.base, *self.by_index.values()):
            if options.interleave is not None:
                message = (
                    "interleave.key identifies one session, so it cannot be a default; pass interleave with each search"
                )
                raise ConfigError(message, setting="rerank.interleave", source="argument")
            if options.traffic is not None and options.traffic.key is not None:
                message = (
                    "traffic.key identifies one session, so it cannot be a default; pass traffic.key with each search"
                )
                raise ConfigError(message, setting="rerank.traffic.key", source="argument")

    def options_for(self, index: Any) -> Rerank:
        """Return the options of the searched indices, or ``base`` if the indices have different options.

        ``index`` is a name, several names or patterns, or None for all indices (`match_names`).
        """
        if not self.by_index:
            return self.base
        names = match_names(index, self.by_index)  # None stands for an index that no name or pattern matches
        distinct_options = {self.base if name is None else self.by_index[name] for name in names}
        return distinct_options.pop() if len(distinct_options) == 1 else self.base

    def models_of(self, index: Any) -> set[str | None]:
        """Return the models of the searched indices. None stands for the client's model."""
        return {None if name is None else self.models[name] for name in match_names(index, self.models)}

    def without_models(self, override: str) -> Self:
        """Return a copy without models, because the caller's model or scorer is used for every index.

        ``override`` describes this model or scorer in the log, such as "the model e5-small".
        """
        if self.models:
            logger.info("%s is used for every index, and the models in the settings file are ignored", override)
        return replace(self, models={})

    def without_traffic(self) -> Self:
        """Return a copy without ``traffic``, so that every search is reranked."""
        by_index = {name: replace(options, traffic=None) for name, options in self.by_index.items()}
        return replace(self, base=replace(self.base, traffic=None), by_index=by_index)

    @classmethod
    def load(
        cls, settings: Settings, options: Rerank | RerankOptions | None = None, *, model: str | None = None
    ) -> Self:
        """Read the defaults from the settings file.

        Args:
            settings: the settings, which have the path of the file.
            options: the client's options, which take precedence over the file's ``[rerank]``.
            model: the client's model. If given, the models in the file are ignored.

        Raises:
            ConfigError: the file cannot be read, or contains an unknown key or an invalid value.
        """
        file = settings.find_settings_file()
        content = read_file(file) if file else {}
        if file and not settings.settings_file:  # the user has not named the file
            logger.info("rerank=True uses the options in %s", file.absolute())
        base = _parse_table(content.get("rerank", {}), Rerank(), f"{file} [rerank]")
        if options is not None:
            base = Rerank.of(options, base) or base
        tables = content.get("index", {})
        by_index = {
            name: _parse_table(table["rerank"], base, f"{file} [index.{name!r}.rerank]")
            for name, table in tables.items()
            if "rerank" in table
        }
        models = {name: table["model"] for name, table in tables.items() if "model" in table}
        loaded = cls(base, by_index, models)
        return loaded if model is None else loaded.without_models(f"the model {model}")


def _parse_table(table: Mapping[str, Any], base: Rerank, source: str) -> Rerank:
    """Return the options in a table of the settings file, and those of ``base`` where the table has none.

    ``source`` names the file and the table in error messages, such as ``osrerank.toml [rerank]``.
    """
    try:
        return Rerank.of(table, base) or base
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}", setting=error.setting, source=source) from None
