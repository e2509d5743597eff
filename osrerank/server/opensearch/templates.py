"""Search templates that rerank, so that callers send a text alone, and no index has a default pipeline.

OpenSearch 3.6 ignores a search pipeline's name in a template, though not in a search; the template has its processors.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from opensearchpy import NotFoundError, OpenSearch

from osrerank.errors import InstallError
from osrerank.server.opensearch.cluster import explained

MARK = "{{! Reranks with osrerank. Made, and to be removed, by osrerank pipeline. }}"
"""A comment of Mustache's, at the beginning of a template."""
PAGE = {"from": 0, "size": 10}
"""Parameters of the page, with what they are where a caller gives none."""


def template_of(fields: Sequence[str], processors: Mapping[str, Any]) -> str:
    """Return a template with the parameters ``query``, ``from`` and ``size``.

    Args:
        fields: that are searched.
        processors: of the search pipeline.
    """
    body = {
        "query": {"multi_match": {"query": "{{query}}", "fields": list(fields)}},
        "search_pipeline": processors,
        "ext": {"rerank": {"query_context": {"query_text": "{{query}}"}}},
    }
    page = "".join(
        f'"{name}":{{{{#{name}}}}}{{{{{name}}}}}{{{{/{name}}}}}{{{{^{name}}}}}{usual}{{{{/{name}}}}},'
        for name, usual in PAGE.items()
    )
    return f"{MARK}{{{page}{json.dumps(body, separators=(',', ':'))[1:]}"


class Templates:
    """The search templates of a cluster, by their names.

    Args:
        client: the cluster's.
    """

    def __init__(self, client: OpenSearch) -> None:
        self._client = client

    def has(self, name: str, source: str) -> bool:
        """Return whether a template is there and as given."""
        return self._source(name) == source

    def check(self, name: str) -> None:
        """Check that a name is free, or a template of ours has it.

        Raises:
            InstallError: it is not.
        """
        source = self._source(name)
        if source is not None and not source.startswith(MARK):
            raise InstallError(f"the search template {name} is not osrerank's: choose another --template")

    def put(self, name: str, source: str) -> None:
        """Make a template, or make it anew.

        Raises:
            InstallError: another template has that name, or the cluster refuses it.
        """
        self.check(name)
        with explained(f"put the search template {name}"):
            self._client.put_script(id=name, body={"script": {"lang": "mustache", "source": source}})

    def remove(self, name: str) -> bool:
        """Delete a template; return whether there was one of ours.

        Raises:
            InstallError: the cluster refuses.
        """
        if not (self._source(name) or "").startswith(MARK):
            return False
        with explained(f"remove the search template {name}"):
            self._client.delete_script(id=name)
        return True

    def _source(self, name: str) -> str | None:
        with explained(f"look at the search template {name}"):
            try:
                found = self._client.get_script(id=name)
            except NotFoundError:
                return None
        return str(found["script"].get("source", ""))
