"""Read the rerank server's address from the settings, and infer its dialect from the address or from its responses."""

import hashlib
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

from osrerank.errors import ConfigError
from osrerank.scoring.backends.http.dialects import DIALECTS, Dialect, Scale
from osrerank.settings import SETTINGS_FILE, Settings
from osrerank.settings_file import HttpSettings

AUTO = "auto"
HOSTS = {"cohere.com": "cohere-v2", "cohere.ai": "cohere-v2", "jina.ai": "jina", "voyageai.com": "voyage"}
"""Domain of a server -> its dialect. Subdomains are included: ``api.jina.ai`` uses ``jina``."""
PATHS = {"/v1/score": "vllm-score", "/score": "vllm-score", "/v2/rerank": "cohere-v2", "/v1/rerank": "jina"}
"""End of an address -> dialect. ``/rerank`` alone tells nothing, because several dialects use it."""


@dataclass(frozen=True, slots=True)
class Target:
    """The rerank server that the settings describe.

    Attributes:
        url: address of the server, without a slash at the end.
        dialect: dialect of the server. None if it must be detected from the server's responses.
        model: the server's name for the model. "" lets the server choose.
        scale_setting: scale of the scores, ``probability`` or ``logit``. ``auto`` means the dialect's scale.
        max_documents: maximum number of documents in a request. 0 uses the dialect's maximum.
    """

    url: str
    dialect: Dialect | None
    model: str
    scale_setting: str
    max_documents: int

    @classmethod
    def from_settings(cls, settings: Settings, model: str) -> Self:
        """Read the server from ``[http]`` of the settings file.

        If the user chose no model, its name is not sent, because other servers do not know osrerank's default model.

        Raises:
            ConfigError: the settings file cannot be read or has no address, or the dialect needs a model's name and the
                settings do not set it.
        """
        http = HttpSettings.load(settings)
        if http.url is None:
            reason = "the backend http needs a rerank server: set url in [http] of osrerank.toml"
            raise ConfigError(reason, setting="http.url", source=str(settings.find_settings_file() or SETTINGS_FILE))
        url = http.url.rstrip("/")
        dialect_name = _guess_dialect(url) if http.dialect == AUTO else http.dialect
        dialect = DIALECTS[dialect_name] if dialect_name else None
        # by the settings, or by an argument
        is_model_chosen = "model" in settings.model_fields_set or model != settings.model
        if dialect is not None and dialect.needs_model and not is_model_chosen:
            reason = f"the dialect {dialect.name} needs the server's name for the model: set --model or OSRERANK_MODEL"
            raise ConfigError(reason, setting="model", source="OSRERANK_MODEL")
        name_to_send = model if is_model_chosen else ""
        return cls(url, dialect, name_to_send, scale_setting=http.scores, max_documents=http.batch)

    @property
    def host(self) -> str:
        """The server's host and port, for messages."""
        return urlsplit(self.url).netloc

    @property
    def base_url(self) -> str:
        """The address to which paths such as ``/health`` are appended: it never ends in ``/rerank``."""
        return self.url.removesuffix("/rerank")

    @property
    def identity(self) -> str:
        """An id of everything that the client knows to affect the scores: address, dialect, model and scale."""
        dialect = AUTO if self.dialect is None else self.dialect.name
        text = f"{self.url}\n{dialect}\n{self.model}\n{self.scale_setting}"
        return f"http/{dialect}/{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}"

    def request_url(self, dialect: Dialect) -> str:
        """Return the URL of scoring requests: the server's address, with the dialect's path unless it ends in one.

        With the dialect ``jina``, ``https://host`` and ``https://host/v1`` become ``https://host/v1/rerank``.
        """
        if self.url.endswith(("/rerank", "/score")):
            return self.url
        version = dialect.path[:3]
        if version in ("/v1", "/v2"):
            return self.url.removesuffix(version) + dialect.path
        return self.url + dialect.path

    def choose_scale(self, dialect: Dialect) -> Scale:
        """Return the scale in the settings, or the dialect's scale for ``auto``."""
        if self.scale_setting == "probability":
            return "probability"
        return "logit" if self.scale_setting == "logit" else dialect.scale


def dialect_from_info(content: Any) -> Dialect | None:
    """Infer a server's dialect from the JSON of its ``/info``. Returns None unless it is TEI or ``osrerank serve``."""
    if not isinstance(content, dict) or "max_client_batch_size" not in content:
        return None
    return DIALECTS["osrerank" if "max_body_bytes" in content else "tei"]


def dialect_from_models(content: Any) -> Dialect | None:
    """Infer a server's dialect from the JSON of its ``/v1/models``. Returns None if the server is not vLLM."""
    models = content.get("data") if isinstance(content, dict) else None
    if not isinstance(models, list):
        return None
    is_vllm = any(isinstance(model, dict) and model.get("owned_by") == "vllm" for model in models)
    return DIALECTS["vllm"] if is_vllm else None


def _guess_dialect(url: str) -> str:
    """Infer the name of a server's dialect from its address. Returns "" if the address does not tell it."""
    address = urlsplit(url)
    host = address.hostname or ""
    for domain, dialect in HOSTS.items():
        if host == domain or host.endswith(f".{domain}"):
            is_old_cohere = dialect == "cohere-v2" and address.path.startswith("/v1")
            return "cohere-v1" if is_old_cohere else dialect
    for path, dialect in PATHS.items():
        if address.path.endswith(path):
            return dialect
    return ""
