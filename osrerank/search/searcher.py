"""Hold the state that a client's searches share: models, default options, caches, side indices, saved orders."""

from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from typing import Any

from cachetools import LRUCache

from osrerank._caches import SharedCache
from osrerank.errors import ConfigError
from osrerank.options.defaults import Defaults
from osrerank.options.rerank import Rerank
from osrerank.retrieval.bm25_scale import Bm25Scales
from osrerank.retrieval.build_fields import BuildFieldFinder
from osrerank.retrieval.engine_finder import EngineFinder
from osrerank.retrieval.expiring import ExpiringCache
from osrerank.retrieval.field_finder import FieldFinder
from osrerank.retrieval.fields import CheckedNames, FieldChoice, SearchFields, caller_names
from osrerank.retrieval.mapping import Leaf, read_leaves
from osrerank.retrieval.query_text import find_searched_fields
from osrerank.retrieval.requests import NO_OPTIONS, SideRequest, digest_credentials
from osrerank.retrieval.retrievers import read_queries
from osrerank.retrieval.search_pipelines import SearchPipelines
from osrerank.search.calibrated import Calibrations
from osrerank.search.orders import Orders
from osrerank.search.shadow import Shadows
from osrerank.search.ubi import UbiRecords
from osrerank.search.vectors import SideVectors
from osrerank.service import RerankService
from osrerank.services import Services
from osrerank.types.engine import Engine
from osrerank.types.reasons import Reason

MAX_USERS = 100
"""The maximum number of users with caches of their own."""
DEADLINE_MS = 1_000.0
"""The default deadline of a search by document vectors, in milliseconds. It holds once the model is loaded."""
NO_BODY: Mapping[str, Any] = {}


class Searcher:
    """The state that the searches of a client share.

    Safe to use from many threads.

    Args:
        service: the service that holds the process's models.
        defaults: the options of ``rerank=True`` for each index; by default those of the settings file.
        engine: the search engine; if None, the server is asked which one it is.
        authentication: a digest of the client's credentials, which keeps the cached data of different users apart.

    Attributes:
        service: the models of indices for which the settings file names no model.
        models: the models of indices for which the settings file names one; None if it names no models, or the caller
            passes a scorer.
        defaults: the options of ``rerank=True`` for each index.
        engine: identifies the search engine.
        pipelines: looks up the search pipelines of searches.
        without_named_scores: index -> the reason why its engine does not return scores of named queries, for a minute.
        bm25_scales: looks up the scale of first-pass scores.
        fields: looks up the fields to search, and the fields whose text the model gets.
        calibrations: the calibrations of the indices' probabilities.
        records: records the hits that users saw, for UBI (User Behavior Insights).
        vectors: reads and writes the side indices, which store document vectors; None if they are off.
        orders: saves the orders that later pages need.
        shadows: reranks the searches of shadow mode in the background.
        authentication: the digest of the user's credentials.
        is_embedded: whether the engine is the embedded one.
        deadline_ms: the default deadline of a search that ends with the stage ``vectors``, in milliseconds; None for no
            deadline.
    """

    def __init__(
        self,
        service: RerankService,
        defaults: Defaults | None = None,
        *,
        engine: Engine | None = None,
        authentication: str = "",
    ) -> None:
        settings, clock = service.settings, service.clock
        self.is_embedded = is_embedded = engine is Engine.EMBEDDED
        self.service = service
        defaults = defaults or Defaults.load(settings)
        self.defaults = defaults.without_models("the client's own scorer") if service.has_own_scorer else defaults
        self.models = Services(self.service, self.defaults) if self.defaults.models else None
        self._own_service = nullcontext(self.service)
        self.engine = EngineFinder(engine or (Engine[settings.engine.upper()] if settings.engine else None))
        self.records = UbiRecords(is_embedded=is_embedded)
        self.orders = Orders(settings.redis_url.get_secret_value() if settings.redis_url else None, clock)
        self.shadows = Shadows(settings)
        self.deadline_ms: float | None = DEADLINE_MS
        self._by_user = SharedCache(lambda: LRUCache[str, Searcher](MAX_USERS))
        self._set_user(authentication)

    def _set_user(self, authentication: str) -> None:
        """Start with empty caches for a user, and use the digest of the user's credentials in cache keys."""
        settings, clock = self.service.settings, self.service.clock
        self.authentication = authentication
        self.pipelines = SearchPipelines(self.engine, clock)
        self.bm25_scales = Bm25Scales(clock)
        self.without_named_scores: ExpiringCache[str, Reason] = ExpiringCache(clock)
        uses_side_indices = settings.vectors == "index" or (settings.vectors is None and not self.is_embedded)
        self.fields = FieldFinder(
            build_fields=BuildFieldFinder(self.engine, settings, uses_side_indices=uses_side_indices)
        )
        self.calibrations = Calibrations(settings)
        self.vectors = SideVectors(self.engine, clock) if uses_side_indices else None

    def for_user(self, headers: Mapping[str, str] | None) -> "Searcher":
        """Return the searcher of the user whose credentials a request has; each user has caches of their own.

        Args:
            headers: the headers of the request, in addition to those of the client's transport.
        """
        user = digest_credentials(headers)
        if not user:
            return self
        with self._by_user as searchers:
            if user not in searchers:
                searchers[user] = copy(self)
                searchers[user]._set_user(f"{self.authentication}/{user}")  # noqa: SLF001 - the same class
            return searchers[user]

    def serving(self, index: Any, *, checked: bool = True) -> AbstractContextManager[RerankService]:
        """Return a context that yields the service of an index's model and keeps the model loaded.

        Args:
            index: the caller's index or indices.
            checked: whether indices with different models raise an error; if not, the client's own model is used.

        Raises:
            ConfigError: there are several indices, with different models.
        """
        if checked and self.models is not None and (reason := self.models.explain_conflict(index)):
            raise ConfigError(reason, setting="model", source="settings file")
        return self._own_service if self.models is None else self.models.use_service(index)

    def warm_up(self, index: Any = None) -> None:
        """Load the models that ``rerank=True`` uses in an index; without an index, the client's own models.

        Raises:
            ConfigError: there are several indices, with different models.
            OsrerankError: as `RerankService.warm_up`.
        """
        with self._own_service if index is None else self.serving(index) as service:
            service.warm_up(self.defaults.base if index is None else self.defaults.options_for(index))

    def close(self) -> None:
        """Release the models and the connections to Redis."""
        if self.models is not None:
            self.models.close()
        self.service.close()
        self.orders.close()

    def forget_indices(self) -> None:
        """Clear the cached mappings, settings and search pipelines of all indices, so that they are read again."""
        with self._by_user as by_user:
            searchers = [self, *by_user.values()]
        for searcher in searchers:
            searcher.fields.forget()
            searcher.pipelines.forget()
            searcher.bm25_scales.forget()

    def fields_of(
        self,
        options: Rerank,
        index: Any,
        *,
        query: Any = "",
        body: Mapping[str, Any] = NO_BODY,
        index_options: Mapping[str, Any] = NO_OPTIONS,
        anew: bool = False,
        uses_build_fields: bool = True,
    ) -> Generator[SideRequest, Any, SearchFields]:
        """Yield the requests that look up fields (usually none), and return the fields that a search uses.

        Args:
            options: the search's options.
            index: the caller's index or indices.
            query: the caller's query: a text, a query-DSL clause, or None for the body's query.
            body: the caller's body, decoded.
            index_options: the search's `osrerank.retrieval.requests.select_index_options`.
            anew: whether to read the mapping again, even if it is cached.
            uses_build_fields: whether the model reads the fields of the last vector build if no fields are named. If
                False, it reads the text fields of the mapping.
        """
        searched = (
            None if isinstance(query, str) else find_searched_fields(read_queries(body) if query is None else query)
        )
        team_fields = [team.fields for team in options.rankings[1:] if team.fields != options.fields]
        team_names = tuple(name for fields in team_fields for name in caller_names(fields))
        defined: tuple[Leaf, ...] = ()
        if "derived" in body or "runtime_mappings" in body:
            leaves = read_leaves({"derived": body.get("derived"), "runtime": body.get("runtime_mappings")})
            defined = tuple(leaves.values())
        is_checked = isinstance(options.fields, CheckedNames)
        named = FieldChoice(
            caller_names(options.query_fields),
            caller_names(options.fields),
            searched,
            team_names,
            defined,
            is_checked,
            uses_build_fields,
        )
        return (yield from self.fields.find(index, named, index_options, refresh=anew))
