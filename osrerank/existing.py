"""Add reranking to a client of OpenSearch or Elasticsearch that the application already has."""

import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

from osrerank.driver import combine_classes
from osrerank.errors import ConfigError
from osrerank.options.defaults import Defaults
from osrerank.options.rerank import Rerank, RerankOptions
from osrerank.service import RerankService
from osrerank.settings import Settings
from osrerank.types import Encoder, Scorer

if TYPE_CHECKING:
    import elasticsearch
    import opensearchpy

    from osrerank.aio import AsyncClient
    from osrerank.client import Client
    from osrerank.elastic import RerankingAsyncElasticsearch, RerankingElasticsearch


class WrapOptions(TypedDict, total=False):
    """The keyword arguments of `wrap`, with the same meaning as in `osrerank.connect`."""

    model: str | None
    vector_model: str | None
    duo_model: str | None
    backend: str | None
    dtype: str | None
    redis_url: str | None
    rerank: Rerank | RerankOptions | None
    scorer: Scorer | Encoder | None
    duo_scorer: Scorer | None
    encoder: Encoder | None
    engine: str | None


@overload
def wrap(client: "opensearchpy.OpenSearch", **options: Unpack[WrapOptions]) -> "Client": ...


@overload
def wrap(client: "opensearchpy.AsyncOpenSearch", **options: Unpack[WrapOptions]) -> "AsyncClient": ...


@overload
def wrap(client: "elasticsearch.Elasticsearch", **options: Unpack[WrapOptions]) -> "RerankingElasticsearch": ...


@overload
def wrap(
    client: "elasticsearch.AsyncElasticsearch", **options: Unpack[WrapOptions]
) -> "RerankingAsyncElasticsearch": ...


def wrap(client: Any, **options: Unpack[WrapOptions]) -> Any:
    """Return a client that can rerank, and that sends its requests through an existing client's connections.

    The existing client is not changed. ``close`` of the new client releases its models, but keeps the connections open.

    Args:
        client: an ``OpenSearch`` or ``AsyncOpenSearch`` of opensearch-py, or an ``Elasticsearch`` or
            ``AsyncElasticsearch`` of elasticsearch-py.
        options: ``model``, ``vector_model``, ``duo_model``, ``backend``, ``dtype``, ``redis_url``, ``rerank``,
            ``scorer``, ``duo_scorer``, ``encoder`` and ``engine``, as for ``connect``.

    Returns:
        A ``Client`` or an ``AsyncClient``. For Elasticsearch, a client of the same class whose searches accept
        ``rerank=``. If you have made your own subclass, the new client is an instance of it: its searches, with and
        without ``rerank``, go through your methods.

    Raises:
        ConfigError: the client is of another class, or an option is unknown or cannot be used.
    """
    wrap_client = _find_wrapper(client)
    unknown = sorted(set(options) - set(WrapOptions.__annotations__))
    if unknown:
        reason = f"wrap has no argument {unknown[0]!r}; the arguments are {', '.join(WrapOptions.__annotations__)}"
        raise ConfigError(reason, setting=unknown[0], source="argument")
    rerank = options.pop("rerank", None)
    scorer = options.pop("scorer", None)
    duo_scorer = options.pop("duo_scorer", None)
    encoder = options.pop("encoder", None)
    settings = Settings.load(**options)
    models = RerankService(settings, scorer, duo_scorer, encoder=encoder, has_index=True)
    return wrap_client(client, models, Defaults.load(settings, rerank, model=options.get("model")))


def _find_wrapper(client: Any) -> Callable[[Any, RerankService, Defaults], Any]:
    """Return the function that creates a reranking client from this client. Import no library but the client's."""
    if _is_instance(client, "elasticsearch", "Elasticsearch", "AsyncElasticsearch"):
        from osrerank.elastic import wrap_client  # noqa: PLC0415 - needs elasticsearch

        return wrap_client
    if _is_instance(client, "opensearchpy", "OpenSearch"):
        from osrerank.client import Client  # noqa: PLC0415 - needs opensearch-py

        return partial(_create_with_transport, Client)
    if _is_instance(client, "opensearchpy", "AsyncOpenSearch"):  # opensearch-py defines it only if aiohttp is installed
        from osrerank.aio import AsyncClient  # noqa: PLC0415 - needs aiohttp

        return partial(_create_with_transport, AsyncClient)
    reason = (
        "wrap needs an OpenSearch or AsyncOpenSearch of opensearch-py, or an Elasticsearch or AsyncElasticsearch of "
        f"elasticsearch-py, not a {type(client).__name__}"
    )
    raise ConfigError(reason, setting="client", source="argument")


def _is_instance(client: Any, module: str, *class_names: str) -> bool:
    """Return whether a client is an instance of one of a module's classes, without importing the module."""
    classes = (getattr(sys.modules.get(module), name, None) for name in class_names)
    return isinstance(client, tuple(client_class for client_class in classes if client_class is not None))


def _create_with_transport(client_class: Any, client: Any, models: RerankService, defaults: Defaults) -> Any:
    """Create a client with the transport of an existing client, which still owns the connections."""
    new_client = client_class(
        models=models, defaults=defaults, transport_class=lambda *_hosts, **_options: client.transport
    )
    new_client.is_owner = False
    new_client.__class__ = combine_classes(client_class, client.__class__)
    # includes the attributes of the application's subclass
    new_client.__dict__ = {**client.__dict__, **new_client.__dict__}
    return new_client
