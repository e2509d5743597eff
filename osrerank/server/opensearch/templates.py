"""Search templates that rerank, so that callers send a text alone, and no index has a default pipeline.

OpenSearch 3.6 ignores a search pipeline's name in a template, though not in a search; the template has its processors.
"""

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from opensearchpy import NotFoundError, OpenSearch

from osrerank.errors import InstallError
from osrerank.server.explained import explained

PAGE = {"from": 0, "size": 10}
"""Parameters of the page, with what they are where a caller gives none."""


def source_of(fields: Sequence[str], processors: Mapping[str, Any]) -> str:
    """Return a template's source, with the parameters ``query``, ``from`` and ``size``.

    Args:
        fields: that are searched.
        processors: the processors of the search pipeline.
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
    return f"{{{page}{json.dumps(body, separators=(',', ':'))[1:]}"


class Templates:
    """The search templates of a search pipeline, each with a comment of Mustache's at its beginning that says so.

    Args:
        client: the cluster's.
        pipeline: the search pipeline's name.
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
        sources = {name: str(one.get("source", "")) for name, one in scripts.items()}
        marked = sorted(name for name, source in sources.items() if source.startswith(self._mark))
        return {name: sources[name].removeprefix(self._mark) for name in marked}

    def check(self, name: str) -> None:
        """Check that a name is free, or a template of the pipeline has it.

        Raises:
            InstallError: it is not.
        """
        with explained(f"look at the search template {name}"):
            try:
                source = self._client.get_script(id=name)["script"].get("source", "")
            except NotFoundError:
                return
        if not source.startswith(self._mark):
            raise InstallError(f"the search template {name} is not {self._pipeline}'s: choose another --template")

    def put(self, name: str, source: str) -> None:
        """Make a template, or make it anew.

        Raises:
            InstallError: another template has that name, or the cluster refuses it.
        """
        self.check(name)
        with explained(f"put the search template {name}"):
            self._client.put_script(id=name, body={"script": {"lang": "mustache", "source": self._mark + source}})

    def remove(self, name: str) -> None:
        """Delete a template of the pipeline, unless it is gone already.

        Raises:
            InstallError: the cluster refuses.
        """
        with explained(f"remove the search template {name}"), contextlib.suppress(NotFoundError):
            self._client.delete_script(id=name)
