"""Hold what a client's searches share: models, default options, caches, stored vectors and saved page orders."""

from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from typing import Any

from cachetools import LRUCache

from osrerank._caches import SharedCache
from osrerank.errors import ConfigError
from osrerank.options.defaults import Defaults
from osrerank.options.rerank import Rerank
from osrerank.retrieval.bm25_scale import Bm25ScaleCache
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
from osrerank.search.calibrations import Calibrations
from osrerank.search.orders import OrderStore
from osrerank.search.shadow import Shadows
from osrerank.search.side_indices import SideIndices
from osrerank.search.ubi import UbiRecords
from osrerank.service import RerankService
from osrerank.services import Services
from osrerank.settings import split_keys
from osrerank.types.engine import Engine
from osrerank.types.reasons import Reason

MAX_USERS = 100
"""The maximum number of users with separate caches. Beyond it, the least recently used caches are dropped."""
DEADLINE_MS = 1_000.0
"""The default time limit of a search that ranks by document vectors, in milliseconds after the model is loaded."""
NO_BODY: Mapping[str, Any] = {}


class Searcher:
    """The models, options and caches that the searches of a client share.

    Safe to use from many threads.

    Args:
        service: the service that holds the process's models.
        defaults: each index's default rerank options. If None, they are read from the settings file.
        engine: the search engine. If None, a request to the server finds out which engine it is.
        authentication: a digest of the client's credentials, which keeps the cached data of different users apart.

    Attributes:
        service: runs the client's own model, for every index without a model in ``models``.
        models: runs the models that the settings file names for single indices. None if it names none, or if the
            caller passes a scorer.
        defaults: each index's default rerank options.
        deadline_ms: the default time limit of a search that ranks by document vectors. None means no limit.
        orders: saves the order of a first page's hits for later pages.
        shadows: reranks the searches of shadow mode in the background.
        records: records the hits that users saw, for UBI (User Behavior Insights).
        engine: identifies the search engine.
        is_embedded: whether the search engine is osrerank's embedded engine.
        authentication: the digest of the user's credentials. This and all attributes below are separate for each user.
        fields: looks up the fields to search, and the fields whose text the model gets.
        pipelines: looks up the search pipelines of indices.
        bm25_scales: looks up the factor by which the engine multiplies an index's BM25 scores.
        calibrations: looks up an index's probability calibration.
        named_score_failures: why the engine returned no scores of named queries, by the caller's index. An entry
            expires after a minute.
        vectors: reads and writes document vectors in side indices. None if the settings turn side indices off.
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
        self.service = service
        self.is_embedded = engine is Engine.EMBEDDED
        defaults = defaults or Defaults.load(settings)
        if service.has_own_scorer:
            defaults = defaults.without_models(override="the client's own scorer")
        self.defaults = defaults
        self.models = Services(self.service, self.defaults) if self.defaults.models else None
        self._own_service = nullcontext(self.service)
        if engine is None and settings.engine:
            engine = Engine[settings.engine.upper()]
        self.engine = EngineFinder(engine)
        self.records = UbiRecords(is_embedded=self.is_embedded)
        redis_url = settings.redis_url.get_secret_value() if settings.redis_url else None
        self.orders = OrderStore(redis_url, clock, split_keys(settings.signing_key))
        self.shadows = Shadows(settings)
        self.deadline_ms: float | None = DEADLINE_MS
        self._by_user = SharedCache(lambda: LRUCache[str, Searcher](MAX_USERS))
        self._set_user(authentication)

    def _set_user(self, authentication: str) -> None:
        """Store the digest of a user's credentials, and create this user's caches."""
        settings, clock = self.service.settings, self.service.clock
        self.authentication = authentication
        self.pipelines = SearchPipelines(self.engine, clock)
        self.bm25_scales = Bm25ScaleCache(clock)
        self.named_score_failures: ExpiringCache[str, Reason] = ExpiringCache(clock)
        uses_side_indices = settings.vectors == "index" or (settings.vectors is None and not self.is_embedded)
        self.fields = FieldFinder(
            build_fields=BuildFieldFinder(self.engine, settings, uses_side_indices=uses_side_indices)
        )
        self.calibrations = Calibrations(settings)
        self.vectors = SideIndices(self.engine, clock) if uses_side_indices else None

    def for_user(self, headers: Mapping[str, str] | None) -> "Searcher":
        """Return the searcher of the user who sends a request, with this user's caches.

        Args:
            headers: the headers of the request. Their credentials may differ from those of the client.
        """
        user = digest_credentials(headers)
        if not user:
            return self
        with self._by_user as searchers:
            if user not in searchers:
                searchers[user] = copy(self)  # shares all that does not belong to a user
                searchers[user]._set_user(f"{self.authentication}/{user}")  # noqa: SLF001 - the same class
            return searchers[user]

    def service_for(self, index: Any, *, allow_mixed_models: bool = False) -> AbstractContextManager[RerankService]:
        """Return a context manager that yields the service of an index's model and keeps the model loaded.

        Args:
            index: the caller's index or indices.
            allow_mixed_models: whether to use the client's model if the indices have different models. If False, this
                is an error.

        Raises:
            ConfigError: the indices have different models, and ``allow_mixed_models`` is False.
        """
        if self.models is None:
            return self._own_service
        conflict = None if allow_mixed_models else self.models.explain_conflict(index)
        if conflict:
            raise ConfigError(conflict, setting="model", source="settings file")
        return self.models.use_service(index)

    def warm_up(self, index: Any = None) -> None:
        """Load the models that ``rerank=True`` uses in an index. If the index is None, load the client's models.

        Raises:
            ConfigError: the indices have different models.
            OsrerankError: see `RerankService.warm_up`.
        """
        if index is None:
            self.service.warm_up(self.defaults.base)
            return
        with self.service_for(index) as service:
            service.warm_up(self.defaults.options_for(index))

    def close(self) -> None:
        """Release the models and the connections to Redis."""
        if self.models is not None:
            self.models.close()
        self.service.close()
        self.orders.close()

    def forget_indices(self) -> None:
        """Clear the cached mappings, settings and search pipelines, so that they are read again."""
        with self._by_user as by_user:
            searchers = [self, *by_user.values()]
        for searcher in searchers:
            searcher.fields.forget()
            searcher.pipelines.forget()
            searcher.bm25_scales.forget()

    def find_fields(
        self,
        options: Rerank,
        index: Any,
        *,
        query: Any = "",
        body: Mapping[str, Any] = NO_BODY,
        index_options: Mapping[str, Any] = NO_OPTIONS,
        refresh: bool = False,
        uses_build_fields: bool = True,
    ) -> Generator[SideRequest, Any, SearchFields]:
        """Find the fields that a search queries, and those whose text the model gets. They are usually cached.

        Args:
            options: the search's options.
            index: the caller's index or indices.
            query: the caller's query: a text, a query-DSL clause, or None for the query in the body.
            body: the caller's body as a mapping.
            index_options: the URL parameters that decide which indices a name matches, such as ``expand_wildcards``.
            refresh: whether to read the mapping again, even if it is cached.
            uses_build_fields: whether a search that names no fields uses the fields of the last vector build. If False,
                it uses the text fields of the mapping.
        """
        fields_in_clause: tuple[str, ...] | None = None  # none are known if the query is a text
        if not isinstance(query, str):
            fields_in_clause = find_searched_fields(read_queries(body) if query is None else query)
        second_ranking_fields: list[str] = []
        for ranking in options.rankings[1:]:  # with interleaving, the ranking that is compared with the first
            if ranking.fields != options.fields:
                second_ranking_fields += caller_names(ranking.fields)
        body_fields: tuple[Leaf, ...] = ()
        if "derived" in body or "runtime_mappings" in body:
            leaves = read_leaves({"derived": body.get("derived"), "runtime": body.get("runtime_mappings")})
            body_fields = tuple(leaves.values())
        choice = FieldChoice(
            query_fields=caller_names(options.query_fields),
            model_fields=caller_names(options.fields),
            searched_by_body=fields_in_clause,
            second_ranking_fields=tuple(second_ranking_fields),
            defined_by_body=body_fields,
            is_checked=isinstance(options.fields, CheckedNames),
            uses_build_fields=uses_build_fields,
        )
        return (yield from self.fields.find(index, choice, index_options, refresh=refresh))
