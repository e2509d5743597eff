"""Choose the service of an index's model, for clients whose settings file names models for indices."""

import logging
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from osrerank._log_throttle import LogThrottle
from osrerank._platform import renew_after_fork
from osrerank.options.defaults import Defaults
from osrerank.service import RerankService

logger = logging.getLogger(__name__)

MAX_MODELS = 3
"""Maximum number of models that a client keeps loaded, including its own."""


class Services:
    """A service for each model that the settings file names; each model is loaded on first use.

    At most `MAX_MODELS` models are loaded at a time. Before another model is loaded, the least recently used one is
    released; it is loaded again when needed. The client's own model and the models of running searches are never
    released, so more models may be loaded for a while. Safe to use from many threads.

    Args:
        client_service: the service of the client's own model, for indices without a model of their own.
        defaults: the defaults, which name the models of indices.
    """

    def __init__(self, client_service: RerankService, defaults: Defaults) -> None:
        self._client_service, self._defaults, self._due = client_service, defaults, LogThrottle()
        names = dict.fromkeys(name for name in defaults.models.values() if name != client_service.settings.model)
        self._services = {name: client_service.with_model(name) for name in names}  # in the order of their last use
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Start over in a forked child, where no search is running."""
        self._lock = threading.Lock()
        self._searches: Counter[str] = Counter()

    @property
    def loaded(self) -> list[str]:
        """The loaded models except the client's own, least recently used first."""
        return [name for name, service in list(self._services.items()) if _is_loaded(service)]

    def conflict(self, index: Any) -> str:
        """Return the reason why a search cannot be reranked if its indices have different models; else ""."""
        names = self._names(index)
        if len(names) == 1:
            return ""
        reason = f"the indices of this search may have different models ({', '.join(sorted(names))})"
        return f"{reason}: search them one by one, leave some out (shop-*,-shop-de*), or set one model for all"

    @contextmanager
    def of(self, index: Any) -> Iterator[RerankService]:
        """Yield the service of an index's model and keep it loaded; for several models, yield the client's own."""
        names = self._names(index)
        name = names.pop() if len(names) == 1 else self._client_service.settings.model
        if name not in self._services:
            yield self._client_service
            return
        with self._lock:
            self._searches[name] += 1
            self._services[name] = service = self._services.pop(name)
            self._make_room(name)
        try:
            yield service
        finally:
            with self._lock:
                self._searches[name] -= 1

    def close(self) -> None:
        """Release all models but the client's own."""
        for service in self._services.values():
            service.first.close()

    def _names(self, index: Any) -> set[str]:
        return {name or self._client_service.settings.model for name in self._defaults.models_of(index)}

    def _make_room(self, needed: str) -> None:
        """Release idle models until another can be loaded; a thread closes each, an unloaded service replaces it."""
        loaded = [name for name in self.loaded if name != needed]
        max_others = MAX_MODELS - _is_loaded(self._client_service) - 1  # room for the needed model
        idle = [name for name in loaded if not self._searches[name]]
        for name in idle[: max(0, len(loaded) - max_others)]:
            released, self._services[name] = self._services[name], self._client_service.with_model(name)
            threading.Thread(target=released.first.close, name="osrerank-release", daemon=True).start()
            if self._due.is_due():
                logger.warning(
                    "[model-released] %s was released to make room for %s, and is loaded again for its next search: "
                    "at most %d stay loaded; not logged again for a minute", name, needed, MAX_MODELS
                )  # fmt: skip


def _is_loaded(service: RerankService) -> bool:
    return service.first.is_encoder is not None
