"""Choose the model of each index, for clients whose settings file sets models for some indices."""

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
"""The maximum number of models that stay loaded, including the client's default model."""


class Services:
    """A `RerankService` for each model in the settings file. Safe to use from many threads.

    A model is loaded on first use. If `MAX_MODELS` are loaded, the least recently used model is then released. The
    client's default model and the models of running searches are never released, so more than `MAX_MODELS` can be
    loaded for a short time.

    Args:
        client_service: the service of the client's default model, for indices without a model in the settings file.
        defaults: the client's defaults, which include the models of indices.
    """

    def __init__(self, client_service: RerankService, defaults: Defaults) -> None:
        self._client_service = client_service
        self._defaults = defaults
        self._log_throttle = LogThrottle()
        names = dict.fromkeys(name for name in defaults.models.values() if name != client_service.settings.model)
        self._services = {name: client_service.with_model(name) for name in names}  # least recently used first
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Create the lock and the counts of running searches, also in a forked child, where no search is running."""
        self._lock = threading.Lock()
        self._n_searches: Counter[str] = Counter()  # model name -> number of running searches

    @property
    def loaded(self) -> list[str]:
        """The names of the loaded models except the default model, least recently used first."""
        services = list(self._services.items())  # a copy, because other threads change the dict
        return [name for name, service in services if _is_loaded(service)]

    def explain_conflict(self, index: Any) -> str:
        """Return why a search of several indices cannot be reranked, or "" if they all have the same model."""
        names = self._model_names(index)
        if len(names) == 1:
            return ""
        reason = f"the indices of this search might use different models ({', '.join(sorted(names))})"
        return f"{reason}: search them one by one, leave some out (shop-*,-shop-de*), or set one model for all"

    @contextmanager
    def use_service(self, index: Any) -> Iterator[RerankService]:
        """Yield the service with an index's model, which stays loaded inside the ``with`` block.

        If the indices have different models, the service has the client's default model.
        """
        names = self._model_names(index)
        name = names.pop() if len(names) == 1 else self._client_service.settings.model
        if name not in self._services:  # the default model
            yield self._client_service
            return
        with self._lock:
            self._n_searches[name] += 1
            service = self._services.pop(name)
            self._services[name] = service  # at the end, as the most recently used
            self._release_models(name)
        try:
            yield service
        finally:
            with self._lock:
                self._n_searches[name] -= 1

    def close(self) -> None:
        """Release all models except the client's default model."""
        for service in self._services.values():
            service.scoring_model.close()

    def _model_names(self, index: Any) -> set[str]:
        return {name or self._client_service.settings.model for name in self._defaults.models_of(index)}

    def _release_models(self, next_name: str) -> None:
        """Release the least recently used idle models, so that there is room for the next model."""
        others = [name for name in self.loaded if name != next_name]
        max_others = MAX_MODELS - 1  # besides the next model
        if _is_loaded(self._client_service):
            max_others -= 1
        idle = [name for name in others if not self._n_searches[name]]
        for name in idle[: max(0, len(others) - max_others)]:
            service = self._services[name]
            self._services[name] = self._client_service.with_model(name)  # not loaded before its next search
            threading.Thread(target=service.scoring_model.close, name="osrerank-release", daemon=True).start()
            if self._log_throttle.should_log():
                logger.warning(
                    "[model-released] %s was unloaded to make room for %s, because at most %d models stay loaded; its "
                    "next search loads it again; not logged again for a minute", name, next_name, MAX_MODELS
                )  # fmt: skip


def _is_loaded(service: RerankService) -> bool:
    """Return whether a service's scoring model is loaded. Only then is it known whether the model is an encoder."""
    return service.scoring_model.is_encoder is not None
