"""Load the backend ``http``, whose scorer sends texts to a rerank server; `osrerank.scoring.registry` calls this."""

import logging
from ipaddress import ip_address

from urllib3.util import parse_url

from osrerank.scoring.backends.http.scorer import EndpointScorer
from osrerank.scoring.backends.http.target import Target
from osrerank.settings import Settings
from osrerank.types import Scorer

logger = logging.getLogger(__name__)


def load(settings: Settings, model: str) -> Scorer:
    """Return a scorer for a model on the rerank server in the settings. The scorer connects at its first call.

    Raises:
        ConfigError: the settings lack the server's address, or the model's name although the server needs it.
    """
    target = Target.from_settings(settings, model)
    key = settings.rerank_key.get_secret_value() if settings.rerank_key else ""
    if key and not _is_key_protected(target.url):
        logger.warning("[key-in-clear] OSRERANK_RERANK_KEY is sent to %s unencrypted; use https in url", target.host)
    return EndpointScorer(target, key)


def check(settings: Settings) -> None:
    """Raise a `ConfigError` unless the settings contain a rerank server's address, and the model's name if needed."""
    Target.from_settings(settings, settings.model)


def _is_key_protected(url: str) -> bool:
    """Return whether requests to a URL are encrypted by TLS or stay on this machine."""
    parts = parse_url(url)
    host = (parts.host or "").strip("[]")
    try:
        return parts.scheme == "https" or host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
