"""The settings of a deployment. No other module reads the environment.

The value of a setting is that of the argument or command-line flag. Without one, it is read from the ``OSRERANK_*``
variable, from a file in the folder ``OSRERANK_SECRETS_DIR``, or from the default, in this order. Settings are read when
a client or a command needs them, not at import.
"""

import base64
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SecretsSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from osrerank._bad_value import describe_validation_error
from osrerank._removed import find_replacement
from osrerank.errors import ConfigError

PREFIX = "OSRERANK_"
DAY_S = 24 * 3600
MAX_TTL_S = 3650 * DAY_S
"""The maximum of settings that are lifetimes: ten years."""
SECRETS_DIR = f"{PREFIX}SECRETS_DIR"
"""The variable with the path of a folder of secrets, one per file, as Docker and Kubernetes mount them.

The name of a file is that of a setting, such as ``osrerank_redis_url``.
"""
DEFAULT_MODEL = "osrerank/e5-small"
"""A model that is part of the package. ``osrerank.scoring.locate`` finds it."""
ONLY_ONE_REDIS = (
    "Redis Sentinel and Redis Cluster are not supported: use a single Redis, or an address that always leads to the "
    "master, such as a proxy in front of Sentinel"
)
MIN_KEY_LENGTH = 16
"""Signing keys with fewer characters than this are refused. ``openssl rand -hex 32`` prints a key of 64 characters."""
SETTINGS_FILE = Path("osrerank.toml")
"""The name of the settings file in the working directory or in the user's configuration folder."""


def user_folder(variable: str, default: str) -> Path:
    """Return osrerank's subfolder of one of the user's folders, such as ``~/.cache/osrerank``.

    The ``~`` is not expanded here, because some users have no home. `expand_home` expands it when the folder is used.

    Args:
        variable: the XDG variable with the user's folder, such as ``XDG_CACHE_HOME``.
        default: the user's folder if the variable is not set, relative to the home, such as ``.cache``.
    """
    return Path(os.environ.get(variable) or f"~/{default}") / "osrerank"


def expand_home(folder: Path, setting: str) -> Path:
    """Replace ``~`` by the user's home.

    Raises:
        ConfigError: the user has no home. The message says to set the folder with the setting.
    """
    variable = f"{PREFIX}{setting.upper()}"
    try:
        return folder.expanduser()
    except RuntimeError:
        reason = f"this user has no home, so {folder} cannot be found: set {variable}, or HOME"
        raise ConfigError(reason, setting=setting, source=variable) from None


class Settings(BaseSettings):
    """The settings that a deployment configures once.

    Attributes:
        url: the address of the search engine: ``http(s)://[user:password@]host:port``, or ``embedded:FOLDER``. Several
            hosts are separated by commas.
        engine: the kind of search engine, ``opensearch`` or ``elasticsearch``. If None, the client asks the server.
        api_key: Elasticsearch's API key, in the encoded form that Elasticsearch returns.
        redis_url: the Redis for the score cache. If None, each process caches only its own scores. The backend
            ``workers`` also uses this Redis as its broker, unless ``broker_url`` is set.
        model: the model that scores candidates: a shipped model's name, a directory in Hugging Face layout, or a hub
            id.
        vector_model: the bi-encoder of the stage ``vectors`` if ``model`` is a cross-encoder: a name, directory or hub
            id, as for ``model``.
        duo_model: the model that compares pairs of candidates, for the pipelines ``mono-duo`` and ``vectors-duo``: a
            name, directory or hub id, as for ``model``. If None, these pipelines cannot be used.
        broker_url: the Redis through which clients and workers exchange messages. If None, it is ``redis_url``.
        backend: the backend that computes scores: ``onnx``, ``torch``, ``workers`` for ``osrerank worker`` processes,
            or ``http`` for the rerank server in the table ``[http]`` of the settings file. ``auto`` chooses ``onnx`` if
            the model has an ONNX graph, and ``torch`` otherwise.
        dtype: the precision of the torch backend: ``fp32``, ``bf16`` or ``fp16``. ``auto`` uses 16 bits on a GPU, and
            fp32 on the CPU. If ``backend`` is ``auto``, any other value selects the torch backend.
        cache_ttl_s: the time after which an unused score is removed from the cache, in seconds.
        cache_mb: the memory for cached scores in Redis, in megabytes. 0 disables this cache.
        cache_local_mb: the memory for cached scores in this process, in megabytes. 0 disables this cache.
        vectors: where the document vectors of bi-encoders are stored. ``file``: in a file. ``index``: in the file and,
            for each searched index, in a second index, its side index. ``redis``: in the Redis of ``redis_url``.
            ``off``: nowhere. None means ``index`` on a cluster and ``file`` in the embedded engine. Where no index is
            searched, it means ``redis`` if ``redis_url`` is set, and ``file`` otherwise.
        vectors_folder: the folder of the file with document vectors.
        vectors_mb: the memory or disk space for document vectors, in megabytes. In Redis, it is reduced to ``cache_mb``
            if this is lower and not 0.
        vectors_ttl_s: the lifetime of a document's vector, in seconds.
        vectors_profile: the precision of a vector's numbers: ``standard`` has 8 bits, ``exact`` 32.
        vectors_key: the secret that signs vectors. Vectors without a valid signature are not used.
        signing_key: the secret with which clients and workers sign their messages, and the scores and orders of pages
            in Redis. Those without a valid signature are refused. It can be several secrets, separated by commas: the
            first signs, and the signatures of all are accepted, so that a secret can be replaced without restarting
            all processes at once.
        queue_chunks: how many chunks can wait per worker. A chunk is a part of a search's candidates. A search that
            would exceed this number is refused as overloaded.
        worker_tasks: the number of chunks that a worker scores at a time. 0 uses the model's default.
        metrics_port: the port of a worker's Prometheus metrics. 0 turns them off.
        probe_port: the port of a worker's HTTP probes ``/live`` and ``/ready``. 0 turns them off.
        log_format: the format of a worker's log lines: ``text`` or ``json``.
        settings_file: the TOML file with the default rerank options (``[rerank]``, ``[index."NAME".rerank]``), the
            ``model`` of an index (``[index."NAME"]``), and the rerank server of the backend ``http`` (``[http]``). If
            None, it is ``./osrerank.toml``, or else ``osrerank/osrerank.toml`` in the user's configuration folder, if
            one exists.
        threads: the number of CPU threads for scoring. 0 uses one per physical core of this process.
        server_token: the bearer token that clients of ``osrerank serve`` must send. If None, they need no token.
        rerank_key: the key or token for the rerank server of the backend ``http``, sent as ``Authorization: Bearer``.
        shadow_file: the file to which searches in shadow mode (option ``traffic``) append JSON lines about what
            reranking would have changed, up to 100 MB. If None, no file is written.
        shadow_texts: whether the lines of ``shadow_file`` include the query's text, the ids of the hits, and the
            sentence that says why a search was not reranked, which may quote the query.
        trace_queries: whether OpenTelemetry traces include the texts of queries, and the sentences that say why
            searches were not reranked.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True, extra="forbid", frozen=True)

    url: SecretStr = SecretStr("embedded:~/.local/share/osrerank")
    engine: Literal["opensearch", "elasticsearch"] | None = None
    api_key: SecretStr | None = None
    redis_url: SecretStr | None = None
    model: str = DEFAULT_MODEL
    vector_model: str = DEFAULT_MODEL
    duo_model: str | None = None
    broker_url: SecretStr | None = None
    backend: str = "auto"
    dtype: str = "auto"
    cache_ttl_s: int = Field(default=7 * DAY_S, gt=1, le=MAX_TTL_S)
    cache_mb: float = Field(default=256.0, ge=0, allow_inf_nan=False)
    cache_local_mb: float = Field(default=16.0, ge=0, allow_inf_nan=False)
    vectors: Literal["file", "index", "redis", "off"] | None = None
    vectors_folder: Path = Field(default_factory=lambda: user_folder("XDG_CACHE_HOME", ".cache") / "vectors")
    vectors_mb: float = Field(default=1024.0, ge=1, allow_inf_nan=False)
    vectors_ttl_s: int = Field(default=30 * DAY_S, gt=1, le=MAX_TTL_S)
    vectors_profile: Literal["standard", "exact"] = "standard"
    vectors_key: SecretStr | None = None
    signing_key: SecretStr | None = None
    queue_chunks: int = Field(default=64, gt=0)
    worker_tasks: int = Field(default=0, ge=0)
    metrics_port: int = Field(default=0, ge=0, le=65535)
    probe_port: int = Field(default=0, ge=0, le=65535)
    log_format: Literal["text", "json"] = "text"
    settings_file: Path | None = None
    threads: int = Field(default=0, ge=0)
    server_token: SecretStr | None = None
    rerank_key: SecretStr | None = None
    shadow_file: Path | None = None
    shadow_texts: bool = False
    trace_queries: bool = False

    @field_validator("url")
    @classmethod
    def _validate_url(cls, url: SecretStr) -> SecretStr:
        cloud_address = _parse_cloud_id(url.get_secret_value())
        if cloud_address is not None:
            return SecretStr(cloud_address)
        for address in url.get_secret_value().split(","):
            # A host must follow the user and the password, which can contain any character except @. Because ?+ is
            # possessive, the user is never taken for the host.
            if not re.match(r"https?://(?:[^@]*@)?+[^/@]|embedded:.", address.strip()):
                raise ValueError(
                    "it must be http(s)://host:port (or several, separated by commas), a cloud id, or embedded:FOLDER"
                )
            if not address.strip().startswith("embedded:"):
                _check_address(address.strip())
        return url

    @field_validator("server_token", "rerank_key", "api_key")
    @classmethod
    def _validate_token(cls, token: SecretStr | None) -> SecretStr | None:
        if token is not None and not re.fullmatch(r"[!-~]+", token.get_secret_value()):
            raise ValueError("it must consist of printable ASCII characters without spaces")
        return token

    @field_validator("signing_key")
    @classmethod
    def _validate_signing_key(cls, signing_key: SecretStr | None) -> SecretStr | None:
        keys = [] if signing_key is None else signing_key.get_secret_value().split(",")
        if any(len(key.strip()) < MIN_KEY_LENGTH for key in keys):
            raise ValueError(f"a key must have at least {MIN_KEY_LENGTH} characters; separate several keys by commas")
        return signing_key

    @field_validator("redis_url", "broker_url")
    @classmethod
    def _validate_redis_url(cls, url: SecretStr | None) -> SecretStr | None:
        if url is None:
            return None
        from redis.connection import parse_url  # noqa: PLC0415 - only where a Redis is configured

        address = url.get_secret_value()
        # a scheme such as redis+sentinel, or several hosts separated by commas
        if re.match(r"[a-z+]*(sentinel|cluster)[a-z+]*:|[a-z]+://(?:[^@]*@)?+[^/@?]*,", address):
            raise ValueError(ONLY_ONE_REDIS)
        if not re.match(r"(rediss?|unix)://.", address):
            raise ValueError("it must be redis://[:password@]host:port/db, rediss://... with TLS, or unix://path")
        if not address.startswith("unix:"):
            _check_address(address)
        parse_url(address)  # type: ignore[no-untyped-call]  # raises ValueError if an option is invalid
        return url

    def find_settings_file(self) -> Path | None:
        """Return the path of the settings file, or None if there is no file."""
        if self.settings_file is not None:
            return self.settings_file
        folders = [Path()]
        with suppress(RuntimeError):  # the user has no home
            folders.append(user_folder("XDG_CONFIG_HOME", ".config").expanduser())
        return next((folder / SETTINGS_FILE for folder in folders if (folder / SETTINGS_FILE).is_file()), None)

    def broker(self) -> str:
        """Return the URL of the broker, the Redis through which clients and workers communicate.

        Raises:
            ConfigError: no Redis is configured.
        """
        url = self.broker_url or self.redis_url
        if url is None:
            reason = "workers need a Redis: set --redis-url or OSRERANK_REDIS_URL (or OSRERANK_BROKER_URL)"
            raise ConfigError(reason, setting="broker_url", source=f"{PREFIX}BROKER_URL")
        return url.get_secret_value()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - pydantic's signature
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - pydantic's signature
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources of values: arguments, environment, secrets. Earlier sources override later ones."""
        return init_settings, env_settings, SecretsSettingsSource(settings_cls, secrets_dir=_secrets_folder())

    @classmethod
    def load(cls, **arguments: Any) -> Self:
        """Read settings. Arguments that are not None override the environment, which overrides the folder of secrets.

        Raises:
            ConfigError: a value cannot be used, an ``OSRERANK_*`` variable is not a setting, or the folder of secrets
                does not exist.
        """
        names = {SECRETS_DIR} | {f"{PREFIX}{name}".upper() for name in cls.model_fields}
        variables = [name for name in os.environ if name.upper().startswith(PREFIX)]
        for name in (*variables, *_find_secret_files()):
            if name.upper() not in names and not _is_service_link(name):
                fix = find_replacement(name.upper()) or f"the settings are {', '.join(sorted(names))}"
                raise ConfigError(f"{name} is not a setting; {fix}", setting=name, source="environment")
        try:
            return cls(**{name: value for name, value in arguments.items() if value is not None})
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            setting = ".".join(str(part) for part in first["loc"])
            source = "argument" if setting in arguments else f"{PREFIX}{setting.upper()}"
            reason = describe_validation_error(first)
            message = f"the setting {setting} ({source}) is invalid: {reason}"
            raise ConfigError(message, setting=setting, source=source) from None
        except SettingsError:
            reason = (
                f"this user cannot read the folder {os.environ.get(SECRETS_DIR)} of {SECRETS_DIR}, or a file in it; "
                "change its permissions"
            )
            raise ConfigError(reason, setting=SECRETS_DIR, source="environment") from None


def _check_address(url: str) -> None:
    """Raise `ValueError` if a URL has no readable host and port. The message never contains the password."""
    try:
        parts = urlsplit(url)
        # an unencoded / or # in the password ends the host, so the @ after the password is in the path or fragment
        is_readable = parts.port != 0 and "@" not in parts.path + parts.fragment
    except ValueError:
        is_readable = False
    if not is_readable:
        raise ValueError("its host and port cannot be read; percent-encode the password")


def _parse_cloud_id(text: str) -> str | None:
    """Return the address in a cloud id of Elastic Cloud, or None if the text is not a cloud id.

    A cloud id is ``NAME:BASE64``, where ``BASE64`` encodes ``HOST[:PORT]$ELASTICSEARCH_ID[:PORT]$KIBANA_ID``. The
    address of ``eu.example.com$abc$def`` is ``https://abc.eu.example.com:443``.
    """
    _, colon, encoded = text.strip().rpartition(":")
    if not colon:
        return None
    try:
        host_and_port, elasticsearch_id, *_ = base64.b64decode(encoded, validate=True).decode().split("$")
    except ValueError:
        return None
    host, _, port = host_and_port.partition(":")
    subdomain = elasticsearch_id.partition(":")[0]
    return f"https://{subdomain}.{host}:{port or 443}"


def refuse_settings(options: Mapping[str, Any]) -> None:
    """Reject settings among the options that ``connect`` passes to opensearch-py, which silently ignores unknown names.

    Raises:
        ConfigError: an option is a setting. The message contains its environment variable.
    """
    for name in sorted(set(options) & set(Settings.model_fields)):
        variable = f"{PREFIX}{name.upper()}"
        raise ConfigError(f"connect() has no argument {name}; set {variable}", setting=name, source="argument")


def _is_service_link(name: str) -> bool:
    """Return whether Kubernetes set a variable, such as ``OSRERANK_SERVER_PORT`` for a Service osrerank-server."""
    ending = "_SERVICE_HOST"
    services = [variable.removesuffix(ending) for variable in os.environ if variable.endswith(ending)]
    return any(name.startswith((f"{service}_SERVICE_", f"{service}_PORT")) for service in services)


def _find_secret_files() -> list[str]:
    """Return the names of the files in the folder of secrets that begin with `PREFIX`, in upper or lower case."""
    folder = _secrets_folder()
    files = sorted(folder.iterdir()) if folder else ()
    return [file.name for file in files if file.name.upper().startswith(PREFIX)]


def split_keys(secret: SecretStr | None) -> list[bytes]:
    """Return the comma-separated keys of a setting. Return [] if the setting has no value."""
    if secret is None:
        return []
    return [key.strip().encode() for key in secret.get_secret_value().split(",")]


def _secrets_folder() -> Path | None:
    """Return the folder of secrets, or None if the variable `SECRETS_DIR` is not set.

    Raises:
        ConfigError: the folder does not exist.
    """
    folder = os.environ.get(SECRETS_DIR)
    if not folder:
        return None
    if not Path(folder).is_dir():
        reason = f"{SECRETS_DIR} is {folder}, which is not a folder"
        raise ConfigError(reason, setting=SECRETS_DIR, source="environment")
    return Path(folder)
