"""Add reranking to an OpenSearch client that the application already has."""

from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

import opensearchpy

from osrerank.client import Client
from osrerank.errors import ConfigError
from osrerank.options.defaults import Defaults
from osrerank.options.rerank import Rerank, RerankOptions
from osrerank.service import RerankService
from osrerank.settings import Settings
from osrerank.types import Encoder, Scorer

if TYPE_CHECKING:
    from osrerank.aio import AsyncClient


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
def wrap(client: opensearchpy.OpenSearch, **options: Unpack[WrapOptions]) -> Client: ...


@overload
def wrap(client: "opensearchpy.AsyncOpenSearch", **options: Unpack[WrapOptions]) -> "AsyncClient": ...


def wrap(client: Any, **options: Unpack[WrapOptions]) -> Any:
    """Return a client that can rerank, and uses an existing client's transport: its hosts, authentication, serializer.

    The existing client works as before. Closing the new one releases its models, and leaves the connections open.

    Args:
        client: an ``OpenSearch`` or ``AsyncOpenSearch``.
        options: ``model``, ``vector_model``, ``duo_model``, ``backend``, ``dtype``, ``redis_url``, ``rerank``,
            ``scorer``, ``duo_scorer``, ``encoder`` and ``engine``, as for ``connect``.

    Returns:
        A ``Client`` or an ``AsyncClient``.

    Raises:
        ConfigError: the client is neither of these, or an option is unknown or cannot be used.
    """
    client_class = _client_class(client)
    if unknown := sorted(set(options) - set(WrapOptions.__annotations__)):
        known = ", ".join(WrapOptions.__annotations__)
        raise ConfigError(f"wrap has no argument {unknown[0]}; it has {known}", setting=unknown[0], source="argument")
    rerank = options.pop("rerank", None)
    scorers: Any = {name: options.pop(name, None) for name in ("scorer", "duo_scorer", "encoder")}  # type: ignore[misc]
    settings = Settings.load(**options)
    wrapped = client_class(
        models=RerankService(
            settings, scorers["scorer"], scorers["duo_scorer"], encoder=scorers["encoder"], has_index=True
        ),
        defaults=Defaults.load(settings, rerank, model=options.get("model")),
        transport_class=lambda *_hosts, **_options: client.transport,
    )
    wrapped.is_owner = False
    return wrapped


def _client_class(client: Any) -> Any:
    """Return the class of the reranking client for an existing client."""
    if isinstance(client, opensearchpy.OpenSearch):
        return Client
    if isinstance(client, getattr(opensearchpy, "AsyncOpenSearch", ())):  # opensearch-py has it only with aiohttp
        from osrerank.aio import AsyncClient  # noqa: PLC0415 - needs aiohttp

        return AsyncClient
    reason = f"wrap takes an OpenSearch or an AsyncOpenSearch of opensearch-py, not a {type(client).__name__}"
    raise ConfigError(reason, setting="client", source="argument")
