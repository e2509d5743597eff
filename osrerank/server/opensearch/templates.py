"""Manage search templates that rerank: callers then send only a text, and no index needs a default pipeline.

OpenSearch 3.6 ignores the name of a search pipeline in a template, so the template contains the processors.
"""

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from opensearchpy import NotFoundError, OpenSearch

from osrerank.errors import InstallError
from osrerank.server.explained import explained

PAGE = {"from": 0, "size": 10}
"""Parameters of the page -> their defaults."""


def source_of(fields: Sequence[str], processors: Mapping[str, Any]) -> str:
    """Return a template's source, with the parameters ``query``, ``from`` and ``size``.

    Args:
        fields: the searched fields.
        processors: the processors of the search pipeline.
    """
    body = {
        "query": {"multi_match": {"query": "{{query}}", "fields": list(fields)}},
        "search_pipeline": processors,
        "ext": {"rerank": {"query_context": {"query_text": "{{query}}"}}},
    }
    page = "".join(
        f'"{name}":{{{{#{name}}}}}{{{{{name}}}}}{{{{/{name}}}}}{{{{^{name}}}}}{default}{{{{/{name}}}}},'
        for name, default in PAGE.items()
    )
    return f"{{{page}{json.dumps(body, separators=(',', ':'))[1:]}"


class Templates:
    """The search templates of a search pipeline; a Mustache comment at the beginning of each identifies them.

    Args:
        client: a client of the cluster.
        pipeline: the name of the search pipeline.
    """

    def __init__(self, client: OpenSearch, pipeline: str) -> None:
        self._client = client
        self._pipeline = pipeline
        self._mark = f"{{{{! Made, and to be removed, by osrerank pipeline, with the search pipeline {pipeline}. }}}}"

    def all(self) -> dict[str, str]:
        """Return the sources of the pipeline's templates by their names, without the comment."""
        with explained("look at the search templates"):
            state = self._client.cluster.state(metric="metadata", filter_path="metadata.stored_scripts")
        scripts = state.get("metadata", {}).get("stored_scripts", {})
        sources = {name: str(script.get("source", "")) for name, script in scripts.items()}
        marked = sorted(name for name, source in sources.items() if source.startswith(self._mark))
        return {name: sources[name].removeprefix(self._mark) for name in marked}

    def check(self, name: str) -> None:
        """Check that a template of this name may be created or overwritten.

        Raises:
            InstallError: a template of someone else has the name.
        """
        with explained(f"look at the search template {name}"):
            try:
                source = self._client.get_script(id=name)["script"].get("source", "")
            except NotFoundError:
                return
        if not source.startswith(self._mark):
            raise InstallError(f"the search template {name} is not {self._pipeline}'s: choose another --template")

    def put(self, name: str, source: str) -> None:
        """Create or overwrite a template.

        Raises:
            InstallError: a template of someone else has the name, or the cluster refuses the request.
        """
        self.check(name)
        with explained(f"put the search template {name}"):
            self._client.put_script(id=name, body={"script": {"lang": "mustache", "source": self._mark + source}})

    def remove(self, name: str) -> None:
        """Delete a template of the pipeline if it exists.

        Raises:
            InstallError: the cluster refuses the request.
        """
        with explained(f"remove the search template {name}"), contextlib.suppress(NotFoundError):
            self._client.delete_script(id=name)
