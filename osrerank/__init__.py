"""Rerank OpenSearch results with BERT: ``client.search(query, rerank=True)``."""

from osrerank.client import Client, connect
from osrerank.errors import OsrerankError

__version__ = "0.1.0"
__all__ = ["Client", "OsrerankError", "connect"]
