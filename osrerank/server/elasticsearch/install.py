"""Install, inspect and remove an inference endpoint, with which Elasticsearch itself reranks.

Elasticsearch then calls osrerank serve through its inference service ``custom``, which can call any URL. An endpoint's
URL cannot be changed, so `Installer.install` deletes the endpoint and creates a new one. Before that, it tests the new
settings: it creates a trial endpoint, such as ``books-trial-1a2b3c4d``, and scores two texts through it. If several
installations create the endpoint at once, only the first one succeeds. The others check whether that endpoint has their
settings.
"""

import contextlib
import dataclasses
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from opensearchpy import NotFoundError, OpenSearch

from osrerank.errors import ConfigError, InstallError
from osrerank.server.failures import WRONG_SCORE_COUNT, explain_failures

ROOT = "/_inference/rerank"
"""The beginning of the paths of rerank endpoints on Elasticsearch, which end with the endpoint's name."""
RERANK_PATH = "/v2/rerank"
"""The path that Elasticsearch calls on the rerank server."""
REQUEST_PREFIX = '{"model":"osrerank",'
"""The beginning of `REQUEST`. It identifies osrerank's endpoints, because endpoints have no description."""
REQUEST = REQUEST_PREFIX + '"query":${query},"documents":${input}}'
"""The body of the calls to the rerank server. Elasticsearch replaces ``${query}`` and ``${input}`` by JSON values."""
PARSER = {"reranked_index": "$.results[*].index", "relevance_score": "$.results[*].relevance_score"}
"""Where Elasticsearch finds the index of each document and its score in the rerank server's response."""
EXAMPLE_QUERY = "what lowers blood pressure"
TEST_REQUEST = {"query": "ready", "input": ["ready", "not ready"]}
LICENCES = ("enterprise", "trial")
"""The types of licences that include inference endpoints and the retriever ``text_similarity_reranker``."""
MAX_ATTEMPTS = 3
"""The maximum number of attempts to create the endpoint. Attempts fail if other installations create it meanwhile."""
TIMEOUT_S = 60
"""The timeout of a request to Elasticsearch, in seconds. Elasticsearch itself waits 30 seconds for the server."""


@dataclass(frozen=True, slots=True)
class EndpointSpec:
    """The inference endpoint to install.

    Attributes:
        server: the address at which the cluster reaches the rerank server, such as ``http://10.0.0.5:8088``.
        field: the document field that the model reads. It is set in searches, not in the endpoint.
        token: the server's bearer token, or None if the server needs no token.
        index: the index whose mapping contains the field, or "" if no index was specified.
    """

    server: str
    field: str
    token: str | None = dataclasses.field(default=None, repr=False)
    index: str = ""

    def build_settings(self) -> dict[str, Any]:
        """Return the endpoint's settings as Elasticsearch shows them: with ``${token}`` in place of the token."""
        settings: dict[str, Any] = {
            "url": self.server + RERANK_PATH,
            "request": REQUEST,
            "response": {"json_parser": PARSER},
        }
        if self.token is not None:
            settings["headers"] = {"Authorization": "Bearer ${token}"}
        return settings

    def build_body(self) -> dict[str, Any]:
        """Return the body of the request that creates the endpoint.

        The token is one of the ``secret_parameters``, which Elasticsearch never shows.
        """
        secret = {} if self.token is None else {"secret_parameters": {"token": self.token}}
        return {"service": "custom", "service_settings": {**self.build_settings(), **secret}}


def _is_osrerank_endpoint(endpoint: Mapping[str, Any]) -> bool:
    """Return whether osrerank created an endpoint, which Elasticsearch describes as ``{"service": "custom", ...}``."""
    if endpoint["service"] != "custom":
        return False
    return str(endpoint["service_settings"]["request"]).startswith(REQUEST_PREFIX)


class Installer:
    """Installs, inspects and removes an inference endpoint.

    Args:
        client: a client of the cluster. Its user must be allowed to change inference endpoints and read the licence.
        name: the name of the endpoint: lower-case letters and digits, with ``_`` and ``-`` between them.

    Raises:
        ConfigError: the name is not valid.
    """

    kind = "inference endpoint"

    def __init__(self, client: OpenSearch, name: str) -> None:
        if not re.fullmatch(r"[a-z0-9]([a-z0-9_-]*[a-z0-9])?", name):
            fix = "use a-z and 0-9, with '_' and '-' only between them"
            reason = f"the inference endpoint's name {name!r} is not valid: {fix}"
            raise ConfigError(reason, setting="name", source="flag")
        self._client = client
        self._name = name

    def plan(self, spec: EndpointSpec) -> list[str]:
        """Return a sentence for each change that `install` would make, or an empty list if the endpoint is installed.

        Raises:
            InstallError: the licence does not include reranking, or someone else's endpoint has the name.
        """
        self._check_licence()
        if self._is_installed(self.find(), spec):
            return []
        return [f"inference endpoint {self._name}, calling {spec.server}"]

    def find_missing_settings(self, spec: EndpointSpec) -> dict[str, dict[str, Any]]:  # noqa: ARG002 - for OpenSearch
        """Return no settings, because Elasticsearch does not restrict which servers it calls."""
        return {}

    def example_search(self, spec: EndpointSpec) -> str:
        """Return a search that the endpoint reranks, to be pasted into Kibana's Dev Tools."""
        reranker = {
            "retriever": {"standard": {"query": {"match": {spec.field: EXAMPLE_QUERY}}}},
            "field": spec.field,
            "inference_id": self._name,
            "inference_text": EXAMPLE_QUERY,
            "rank_window_size": 50,
        }
        body = {"retriever": {"text_similarity_reranker": reranker}, "size": 10}
        return f"POST {spec.index or '_all'}/_search\n{json.dumps(body, indent=2)}"

    def install(self, spec: EndpointSpec) -> None:
        """Test the new settings, and then create or replace the endpoint. If the test fails, change nothing.

        Raises:
            InstallError: Elasticsearch refused a request, the cluster cannot reach the server, or someone removed or
                changed the endpoint at the same time.
        """
        if not self.plan(spec):
            return
        self._test_settings(spec)
        settings = self.find()
        if self._is_installed(settings, spec):
            return
        for _ in range(MAX_ATTEMPTS):
            if settings is not None:
                self._delete(self._name)
            refusal = None
            try:
                self._create(self._name, spec)
            except InstallError as error:  # another installation might have created the endpoint first
                refusal = error
            settings = self.find()
            if self._is_installed(settings, spec):
                return
        if refusal is not None and settings is None:
            raise refusal
        reason = f"someone else removed or changed the inference endpoint {self._name} at the same time"
        raise InstallError(f"{reason}: run osrerank pipeline status, then install again")

    def _test_settings(self, spec: EndpointSpec) -> None:
        """Create a trial endpoint, score two texts through it, and delete it."""
        trial_name = f"{self._name}-trial-{secrets.token_hex(4)}"
        try:
            self._create(trial_name, spec)
            self._score_test_texts(trial_name)
        except BaseException:
            with contextlib.suppress(InstallError):  # the first failure is the one to report
                self._delete(trial_name)
            raise
        self._delete(trial_name)

    def find(self) -> dict[str, Any] | None:
        """Return the endpoint's settings, or None if no endpoint has this name.

        Raises:
            InstallError: osrerank did not create the endpoint.
        """
        with explain_failures("read the inference endpoint"):
            try:
                content = self._request("GET", self._name)
            except NotFoundError:
                return None
        endpoint = content["endpoints"][0]
        if not _is_osrerank_endpoint(endpoint):
            raise InstallError(f"osrerank did not create the inference endpoint {self._name}: choose another --name")
        settings: dict[str, Any] = endpoint["service_settings"]
        return settings

    def status(self, index: str = "") -> dict[str, Any]:
        """Return a report on the endpoint, after scoring two texts through it.

        Raises:
            ConfigError: ``index`` is not empty. An endpoint has no fields, so no index can be checked for them.
        """
        if index:
            reason = "leave out --index: an inference endpoint of Elasticsearch does not contain fields to check"
            raise ConfigError(reason, setting="index", source="flag")
        settings = self.find()
        if settings is None:
            return {"endpoint": self._name, "installed": False}
        return {
            "endpoint": self._name,
            "installed": True,
            "server": settings["url"].removesuffix(RERANK_PATH),
            "failure": self._find_failure(),
        }

    def remove(self) -> list[str]:
        """Remove the endpoint and the trial endpoints of interrupted installations.

        Returns:
            A sentence for each removed endpoint, such as "removed inference endpoint books".

        Raises:
            InstallError: Elasticsearch refused a request, or osrerank did not create the endpoint.
        """
        self.find()  # raises an error if osrerank did not create the endpoint
        with explain_failures("list the inference endpoints"):
            endpoints = self._request("GET", "_all")["endpoints"]
        name_or_trial = re.compile(f"{re.escape(self._name)}(-trial-[0-9a-f]{{8}})?")
        names = [
            endpoint["inference_id"]
            for endpoint in endpoints
            if _is_osrerank_endpoint(endpoint) and name_or_trial.fullmatch(endpoint["inference_id"])
        ]
        for name in names:
            self._delete(name)
        return [f"removed inference endpoint {name}" for name in names]

    def _check_licence(self) -> None:
        step = "read the licence"
        with explain_failures(step):
            licence = self._client.transport.perform_request("GET", "/_license")["license"]
        if licence["type"] not in LICENCES or licence["status"] != "active":
            raise InstallError(
                "Elasticsearch's text_similarity_reranker needs an active Enterprise or trial licence, but the "
                f"cluster has {licence['type']} ({licence['status']}): rerank in the client, which needs no licence",
                step=step,
            )

    def _is_installed(self, settings: Mapping[str, Any] | None, spec: EndpointSpec) -> bool:
        """Return whether an endpoint with these settings meets the specification and can score two texts.

        Elasticsearch does not reveal the token. If it is wrong, scoring fails.
        """
        sends_token = spec.token is not None
        if settings is None or ("headers" in settings) != sends_token:
            return False
        # Elasticsearch adds other settings, such as a rate limit
        has_settings = settings.items() >= spec.build_settings().items()
        return has_settings and self._find_failure() is None

    def _find_failure(self) -> str | None:
        """Return why the endpoint cannot score two texts, or None if it can."""
        try:
            self._check_licence()
            self._score_test_texts(self._name)
        except InstallError as error:
            return str(error)
        return None

    def _create(self, name: str, spec: EndpointSpec) -> None:
        """Create an endpoint. Elasticsearch then calls the server as a check."""
        with explain_failures("create the inference endpoint", calls_server=True):
            self._request("PUT", name, spec.build_body())

    def _score_test_texts(self, name: str) -> None:
        """Score two texts through Elasticsearch, to check that the cluster reaches the server."""
        step = "score texts through Elasticsearch"
        with explain_failures(step, calls_server=True):
            scores = self._request("POST", name, TEST_REQUEST)["rerank"]
        if len(scores) != len(TEST_REQUEST["input"]):
            raise InstallError(WRONG_SCORE_COUNT.format(len(scores)), step=step)

    def _delete(self, name: str) -> None:
        """Delete an endpoint if it exists."""
        with explain_failures(f"remove the inference endpoint {name}"), contextlib.suppress(NotFoundError):
            self._request("DELETE", name)

    def _request(self, method: str, name: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        path = f"{ROOT}/{name}"
        response: dict[str, Any] = self._client.transport.perform_request(method, path, body=body, timeout=TIMEOUT_S)
        return response
