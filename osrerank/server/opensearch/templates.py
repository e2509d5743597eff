"""Store search templates on a cluster, so that an application only sends a query's text to get reranked hits.

A template contains copies of the search pipeline's processors, because OpenSearch 3.6 ignores the name of a pipeline in
a template.
"""

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from opensearchpy import NotFoundError, OpenSearch

from osrerank.errors import InstallError
from osrerank.server.failures import explain_failures

PAGE_DEFAULTS = {"from": 0, "size": 10}
"""The values of the parameters ``from`` and ``size`` in searches that do not set them."""


def build_template(fields: Sequence[str], processors: Mapping[str, Any]) -> str:
    """Return the Mustache source of a template that searches the fields and reranks the hits.

    Its parameters are ``query``, ``from`` and ``size``. The source begins with
    ``{"from":{{#from}}{{from}}{{/from}}{{^from}}0{{/from}},``: the parameter ``from``, or 0 if it is not set.
    """
    body = {
        "query": {"multi_match": {"query": "{{query}}", "fields": list(fields)}},
        "search_pipeline": processors,
        "ext": {"rerank": {"query_context": {"query_text": "{{query}}"}}},
    }
    page_entries = ""
    for name, default in PAGE_DEFAULTS.items():
        entry = '"NAME":{{#NAME}}{{NAME}}{{/NAME}}{{^NAME}}DEFAULT{{/NAME}},'
        page_entries += entry.replace("NAME", name).replace("DEFAULT", str(default))
    # these entries are not JSON before the template is rendered, so they are joined to the JSON of the other entries
    other_entries = json.dumps(body, separators=(",", ":")).removeprefix("{")
    return "{" + page_entries + other_entries


class Templates:
    """The search templates of a search pipeline.

    The source of each begins with a comment ``{{! ... }}`` that names the pipeline. Other templates are left alone.
    """

    def __init__(self, client: OpenSearch, pipeline: str) -> None:
        self._client = client
        self._pipeline = pipeline
        self._comment = (
            f"{{{{! Made, and to be removed, by osrerank pipeline, with the search pipeline {pipeline}. }}}}"
        )

    def read_sources(self) -> dict[str, str]:
        """Return the source, without the comment, of each template of the pipeline: ``{"template name": "source"}``."""
        with explain_failures("list the search templates"):
            state = self._client.cluster.state(metric="metadata", filter_path="metadata.stored_scripts")
        scripts = state.get("metadata", {}).get("stored_scripts", {})
        sources = {name: str(script.get("source", "")) for name, script in sorted(scripts.items())}
        return {
            name: source.removeprefix(self._comment)
            for name, source in sources.items()
            if source.startswith(self._comment)
        }

    def check_name(self, name: str) -> None:
        """Check that a template can be stored under a name.

        Raises:
            InstallError: there already is a template with this name that does not belong to the pipeline.
        """
        with explain_failures(f"read the search template {name}"):
            try:
                source = self._client.get_script(id=name)["script"].get("source", "")
            except NotFoundError:
                return
        if not source.startswith(self._comment):
            reason = f"there is a search template {name} that osrerank did not make for the pipeline {self._pipeline}"
            raise InstallError(f"{reason}, and it would be overwritten: choose another --template")

    def put(self, name: str, source: str) -> None:
        """Create or overwrite a template.

        Raises:
            InstallError: the template does not belong to the pipeline, or the cluster refuses the request.
        """
        self.check_name(name)
        with explain_failures(f"store the search template {name}"):
            self._client.put_script(id=name, body={"script": {"lang": "mustache", "source": self._comment + source}})

    def remove(self, name: str) -> None:
        """Delete a template of the pipeline if it exists."""
        with explain_failures(f"remove the search template {name}"), contextlib.suppress(NotFoundError):
            self._client.delete_script(id=name)
