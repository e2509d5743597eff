"""Read the settings file ``osrerank.toml``, and check its tables."""

import logging
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from osrerank._bad_value import describe_validation_error
from osrerank.errors import ConfigError
from osrerank.settings import Settings

logger = logging.getLogger(__name__)

TABLES = ("rerank", "index", "http")
"""The allowed top-level tables of a settings file."""
INDEX_KEYS = ("model", "rerank")
"""The allowed keys of ``[index.NAME]`` in a settings file."""
RerankDialect = Literal["auto", "cohere-v1", "cohere-v2", "jina", "voyage", "tei", "vllm", "vllm-score", "osrerank"]
"""The protocols of rerank servers, implemented in `osrerank.scoring.backends.http.dialects`."""


class HttpSettings(BaseModel):
    """The rerank server of the backend ``http``: the table ``[http]`` of the settings file.

    Attributes:
        url: the server's address, ``http(s)://host:port``, perhaps with a path.
        dialect: the server's protocol: ``cohere-v1``, ``cohere-v2``, ``jina``, ``voyage``, ``tei``, ``vllm``,
            ``vllm-score`` or ``osrerank``. ``auto`` determines it from the address, or else from the server's
            description of itself.
        scores: the scale of the server's scores: ``probability`` in [0, 1], or ``logit``. ``auto`` uses the dialect's
            usual scale.
        batch: the maximum number of documents in a request. 0 uses the dialect's maximum.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)

    url: str | None = None
    dialect: RerankDialect = "auto"
    scores: Literal["auto", "probability", "logit"] = "auto"
    batch: int = Field(default=0, ge=0)

    @field_validator("url")
    @classmethod
    def _validate_url(cls, url: str | None) -> str | None:
        if url is not None and not re.fullmatch(r"https?://[^/?#@\s]+(/[^?#@\s]*)?", url):
            raise ValueError("it must be http(s)://host:port/path; set an API key in OSRERANK_RERANK_KEY")
        return url

    @classmethod
    def load(cls, settings: Settings) -> Self:
        """Read the table from the settings file. Without a file or table, return the defaults.

        Raises:
            ConfigError: the file cannot be used.
        """
        file = settings.find_settings_file()
        if file is None:
            return cls()
        if not settings.settings_file:  # osrerank found the file, which the user might not expect
            logger.info("the backend http uses the server in %s", file.absolute())
        return cls.of(read_file(file).get("http", {}), file)

    @classmethod
    def of(cls, table: Any, file: Path) -> Self:
        """Validate the table ``[http]`` of a file.

        Raises:
            ConfigError: the table contains an unknown key or an invalid value.
        """
        try:
            return cls.model_validate(table)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            key = ".".join(str(part) for part in first["loc"])
            reason = describe_validation_error(first)
            if first["type"] == "extra_forbidden":
                reason = f"there is no such key; the keys are {', '.join(cls.model_fields)}"
            setting = f"http.{key}" if key else "http"
            raise ConfigError(f"{file} [http] {key}: {reason}", setting=setting, source=str(file)) from None


def read_file(path: Path) -> dict[str, Any]:
    """Return the tables of a settings file, such as ``{"rerank": {"depth": 50}}``. Rerank options are not checked.

    Raises:
        ConfigError: the file cannot be read or is not TOML, or it contains an unknown table or key or an invalid value.
    """
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        reason = f"the settings file {path} cannot be read: {error.strerror}"
        raise ConfigError(reason, setting="settings_file", source=str(path)) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        reason = f"the settings file {path} is not TOML: {error}"
        raise ConfigError(reason, setting="settings_file", source=str(path)) from None
    _check_tables(content, path)
    HttpSettings.of(content.get("http", {}), path)
    return content


def _check_tables(content: Mapping[str, Any], path: Path) -> None:
    """Check that a file contains only [rerank], [http] and [index.NAME], and that each index's model is a name."""
    unknown = [key for key in content if key not in TABLES]
    index_tables = content.get("index", {})
    if not isinstance(index_tables, Mapping):
        unknown.append("index")
        index_tables = {}
    for name, table in index_tables.items():
        if isinstance(table, Mapping):
            unknown += [f"index.{name}.{key}" for key in table if key not in INDEX_KEYS]
        else:
            unknown.append(f"index.{name}")
    if unknown:
        allowed = "[rerank], [index.NAME.rerank], [index.NAME] with a model, and [http]"
        reason = f"the settings file {path} contains {unknown[0]!r}; it can contain only {allowed}"
        raise ConfigError(reason, setting=unknown[0], source=str(path))
    for name, table in index_tables.items():
        model = table.get("model")
        if "model" in table and not (isinstance(model, str) and model.strip()):
            reason = f"{path} [index.{name!r}] model is {model!r}; it must be a model's name, as for --model"
            raise ConfigError(reason, setting=f"index.{name}.model", source=str(path))
