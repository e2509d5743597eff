"""Which server is asked, in which dialect: told by its address, or by what it says about itself."""

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
"""Hosts, with their subdomains, whose dialect is known."""
PATHS = {"/v1/score": "vllm-score", "/score": "vllm-score", "/v2/rerank": "cohere-v2", "/v1/rerank": "jina"}
"""Ends of an address that name a request; ``/rerank`` alone may be one of several."""


@dataclass(frozen=True, slots=True)
class Target:
    """A rerank server, as the settings describe it.

    Attributes:
        url: its address, without a slash at the end.
        dialect: how it is asked; None where the server must be asked which one it speaks.
        model: its name for the model; "" leaves it to the server.
        scores: ``probability``, ``logit``, or ``auto`` for the dialect's.
        batch: documents of a request at most; 0 for the dialect's.
    """

    url: str
    dialect: Dialect | None
    model: str
    scores: str
    batch: int

    @classmethod
    def of(cls, settings: Settings, model: str) -> Self:
        """Return what the settings describe.

        Args:
            settings: name the file that has the address, in ``[http]``.
            model: the model of the search; the default one is not sent, as no other server has it.

        Raises:
            ConfigError: the settings file cannot be used or has no address, or the dialect needs a model's name and
                there is none.
        """
        http = HttpSettings.load(settings)
        if http.url is None:
            reason = "the backend http needs a rerank server: write url in [http] of osrerank.toml"
            raise ConfigError(reason, setting="http.url", source=str(settings.found_file() or SETTINGS_FILE))
        url = http.url.rstrip("/")
        name = _by_address(url) if http.dialect == AUTO else http.dialect
        dialect = DIALECTS[name] if name else None
        is_named = "model" in settings.model_fields_set or model != settings.model
        if dialect is not None and dialect.needs_model and not is_named:
            reason = f"the dialect {dialect.name} needs the server's name for the model: set --model or OSRERANK_MODEL"
            raise ConfigError(reason, setting="model", source="OSRERANK_MODEL")
        return cls(url, dialect, model if is_named else "", http.scores, http.batch)

    @property
    def host(self) -> str:
        """The server's host and port, for messages."""
        return urlsplit(self.url).netloc

    @property
    def base(self) -> str:
        """The address below which the server's other addresses are, such as those for checks."""
        return self.url.removesuffix("/rerank")

    @property
    def identity(self) -> str:
        """All that a score depends on here: address, dialect, model. What the server has behind them is not known."""
        dialect = AUTO if self.dialect is None else self.dialect.name
        named = f"{self.url}\n{dialect}\n{self.model}\n{self.scores}"
        return f"http/{dialect}/{hashlib.blake2b(named.encode(), digest_size=16).hexdigest()}"

    def address(self, dialect: Dialect) -> str:
        """Return where requests are sent: the address, if it names a request, else the dialect's path below it."""
        if self.url.endswith(("/rerank", "/score")):
            return self.url
        version = dialect.path[:3]
        base = self.url.removesuffix(version) if version in ("/v1", "/v2") else self.url
        return base + dialect.path

    def scale(self, dialect: Dialect) -> Scale:
        """Return what the scores are."""
        if self.scores == "probability":
            return "probability"
        return "logit" if self.scores == "logit" else dialect.scale


def told_by_info(content: Any) -> Dialect | None:
    """Return the dialect of a server by its answer to ``/info``, which TEI and ``osrerank serve`` have."""
    if not isinstance(content, dict) or "max_client_batch_size" not in content:
        return None
    return DIALECTS["osrerank" if "max_body_bytes" in content else "tei"]


def told_by_models(content: Any) -> Dialect | None:
    """Return the dialect of a server by its answer to ``/v1/models``, where vLLM names itself."""
    models = content.get("data") if isinstance(content, dict) else None
    owners = [model.get("owned_by") for model in models if isinstance(model, dict)] if isinstance(models, list) else []
    return DIALECTS["vllm"] if "vllm" in owners else None


def _by_address(url: str) -> str:
    """Return the dialect that an address tells; "" where it may be one of several."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    known = next((name for end, name in HOSTS.items() if host == end or host.endswith(f".{end}")), "")
    if known == "cohere-v2" and parts.path.startswith("/v1"):
        return "cohere-v1"
    return known or next((name for end, name in PATHS.items() if parts.path.endswith(end)), "")
