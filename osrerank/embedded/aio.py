"""The connection and transport for opensearch-py's asynchronous client, which needs the ``async`` extra."""

import asyncio
from typing import Any

from opensearchpy import AsyncTransport

from osrerank.embedded.transport import EmbeddedConnection, HttpResponse, with_decoded_serializer


class AsyncEmbeddedConnection(EmbeddedConnection):
    """The connection for ``AsyncOpenSearch``: requests run in a worker thread."""

    async def perform_request(self, *args: Any, **options: Any) -> HttpResponse:  # type: ignore[override] # as in opensearch-py
        return await asyncio.to_thread(super().perform_request, *args, **options)

    async def close(self) -> None:  # type: ignore[override] # as in opensearch-py
        await asyncio.to_thread(super().close)


class AsyncEmbeddedTransport(AsyncTransport):
    """An asynchronous opensearch-py transport to the embedded engine in the folder ``embedded_path``."""

    DEFAULT_CONNECTION_CLASS = AsyncEmbeddedConnection  # type: ignore[assignment] # declared as aiohttp's connection

    def __init__(self, *hosts: Any, **options: Any) -> None:
        super().__init__(*hosts, **with_decoded_serializer(options))
