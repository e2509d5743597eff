"""The client: an ``opensearchpy.OpenSearch`` whose ``search`` can rerank."""

from pathlib import Path
from typing import Any

from opensearchpy import OpenSearch

from osrerank.settings import Settings

EMBEDDED = "embedded:"


class Client(OpenSearch):
    """An ``opensearchpy.OpenSearch`` that understands ``search(..., rerank=True)``."""


def connect(url: str | None = None, **options: Any) -> Client:
    """Return a client for a server, or for the embedded engine.

    Args:
        url: ``http(s)://[user:password@]host:port``, several of them comma-separated, or ``embedded:FOLDER``;
            ``OSRERANK_URL`` when absent.
        options: passed to ``opensearchpy.OpenSearch``.
    """
    address = Settings.load(url=url).url.get_secret_value()
    if address.startswith(EMBEDDED):
        from osrerank.embedded.transport import EmbeddedTransport  # noqa: PLC0415 - imports tantivy

        folder = Path(address.removeprefix(EMBEDDED)).expanduser()
        return Client(transport_class=EmbeddedTransport, embedded_path=folder, **options)
    return Client([part.strip() for part in address.split(",")], **options)
