"""Elasticsearch's inference endpoint that calls a rerank server: install and remove it completely.

The endpoint is of the service ``custom``. Elasticsearch cannot change an endpoint's URL, so another server means that
the endpoint is deleted and a new one made. Before that, a trial endpoint with the same settings scores a pair. If
several installations run at the same time, Elasticsearch accepts one; the others check whether its endpoint is the one
that they want.
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
from osrerank.server.explained import explained, explained_of_server

ROOT = "/_inference/rerank"
RERANK_PATH = "/v2/rerank"
MARK = '{"model":"osrerank",'
"""The beginning of what is sent to the server, by which our endpoints are known: they have no description."""
REQUEST = MARK + '"query":${query},"documents":${input}}'
PARSER = {"reranked_index": "$.results[*].index", "relevance_score": "$.results[*].relevance_score"}
QUERY = "what lowers blood pressure"
PROBE = {"query": "ready", "input": ["ready", "not ready"]}
LICENCES = ("enterprise", "trial")
"""Types of licences with which Elasticsearch calls inference endpoints and has ``text_similarity_reranker``."""
ATTEMPTS = 3
"""How often the endpoint is made if other installations change it meanwhile."""
TIMEOUT_S = 60
"""Seconds for a request that calls the server; Elasticsearch itself gives up after 30."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What to install.

    Attributes:
        server: the rerank server as the cluster reaches it, ``http(s)://host:port``.
        field: the field whose text the model reads; not part of the endpoint, but of searches.
        token: the server's bearer token.
        index: where the field was looked up.
    """

    server: str
    field: str
    token: str | None = dataclasses.field(default=None, repr=False)
    index: str = ""

    def settings(self) -> dict[str, Any]:
        """Return the endpoint's settings as Elasticsearch shows them, without the token."""
        headers = {} if self.token is None else {"headers": {"Authorization": "Bearer ${token}"}}
        parser = {"response": {"json_parser": PARSER}}
        return {"url": self.server + RERANK_PATH, "request": REQUEST, **parser, **headers}

    def endpoint(self) -> dict[str, Any]:
        """Return the endpoint, with the token as a parameter that Elasticsearch keeps secret."""
        secret = {} if self.token is None else {"secret_parameters": {"token": self.token}}
        return {"service": "custom", "service_settings": {**self.settings(), **secret}}


def _is_own(endpoint: Mapping[str, Any]) -> bool:
    """Return whether an inference endpoint was made here."""
    return bool(endpoint["service"] == "custom" and str(endpoint["service_settings"]["request"]).startswith(MARK))


class Installer:
    """Installs, inspects and removes an inference endpoint.

    Args:
        client: the cluster's, with the rights to change inference endpoints and to read the licence.
        name: the endpoint's: small letters and digits, and ``_`` and ``-`` between them.

    Raises:
        ConfigError: the name has other characters.
    """

    kind = "inference endpoint"

    def __init__(self, client: OpenSearch, name: str) -> None:
        if not re.fullmatch(r"[a-z0-9]([a-z0-9_-]*[a-z0-9])?", name):
            reason = f"the inference endpoint's name is {name!r}; use a-z and 0-9, with '_' and '-' only between them"
            raise ConfigError(reason, setting="name", source="flag")
        self._client = client
        self._name = name

    def plan(self, wish: Wish) -> list[str]:
        """Return what installing would make, a sentence each, without making anything; nothing if all is there.

        Raises:
            InstallError: the licence does not suffice, or an endpoint that is not ours has the name.
        """
        self._check_licence()
        if self._fulfils(self.find(), wish):
            return []
        return [f"inference endpoint {self._name}, calling {wish.server}"]

    def needed_settings(self, wish: Wish) -> dict[str, dict[str, Any]]:  # noqa: ARG002 - OpenSearch's depend on it
        """Return no settings: Elasticsearch calls any server."""
        return {}

    def search(self, wish: Wish) -> str:
        """Return a search that the endpoint reranks, to be pasted into Dev Tools."""
        reranker = {
            "retriever": {"standard": {"query": {"match": {wish.field: QUERY}}}},
            "field": wish.field,
            "inference_id": self._name,
            "inference_text": QUERY,
            "rank_window_size": 50,
        }
        body = {"retriever": {"text_similarity_reranker": reranker}, "size": 10}
        return f"POST {wish.index or '_all'}/_search\n{json.dumps(body, indent=2)}"

    def install(self, wish: Wish) -> None:
        """Score a pair through a trial endpoint, then install the endpoint; leave nothing new if the trial fails.

        Raises:
            InstallError: a step was refused, the cluster cannot reach the server, or the endpoint was removed, or
                installed with other settings, at the same time.
        """
        if not self.plan(wish):
            return
        trial = f"{self._name}-trial-{secrets.token_hex(4)}"
        try:
            self._create(trial, wish)
            self._probe(trial)
        except BaseException:
            with contextlib.suppress(InstallError):  # the first failure is the one to report
                self._delete(trial)
            raise
        self._delete(trial)
        endpoint = self.find()
        for _ in range(ATTEMPTS):  # another installation may remove or make it at the same time
            if self._fulfils(endpoint, wish):
                return
            if endpoint is not None:
                self._delete(self._name)
            refused = None
            try:
                self._create(self._name, wish)
            except InstallError as error:  # perhaps another installation was faster
                refused = error
            endpoint = self.find()
        if self._fulfils(endpoint, wish):
            return
        if refused is not None and endpoint is None:
            raise refused
        reason = f"the inference endpoint {self._name} was removed, or installed with other settings, at the same time"
        raise InstallError(f"{reason}: look at osrerank pipeline status, then install again")

    def find(self) -> dict[str, Any] | None:
        """Return the endpoint's settings, None when there is none.

        Raises:
            InstallError: the endpoint is not ours.
        """
        with explained("look at the inference endpoint"):
            try:
                content = self._request("GET", self._name)
            except NotFoundError:
                return None
        endpoint = content["endpoints"][0]
        if not _is_own(endpoint):
            raise InstallError(f"the inference endpoint {self._name} is not osrerank's: choose another --name")
        found: dict[str, Any] = endpoint["service_settings"]
        return found

    def status(self, index: str = "") -> dict[str, Any]:
        """Return what is installed and whether it works.

        Raises:
            ConfigError: an index is named.
        """
        if index:
            reason = "leave out --index: Elasticsearch's inference endpoint reads no fields, so there are none to check"
            raise ConfigError(reason, setting="index", source="flag")
        found = self.find()
        if found is None:
            return {"endpoint": self._name, "installed": False}
        return {
            "endpoint": self._name,
            "installed": True,
            "server": found["url"].removesuffix(RERANK_PATH),
            "failure": self._failure(),
        }

    def remove(self) -> list[str]:
        """Remove the endpoint and the trial endpoints that interrupted installations left; return what was removed.

        Raises:
            InstallError: a step was refused.
        """
        self.find()
        with explained("look for inference endpoints"):
            endpoints = self._request("GET", "_all")["endpoints"]
        ours = re.compile(f"{re.escape(self._name)}(-trial-[0-9a-f]{{8}})?")
        names = [one["inference_id"] for one in endpoints if _is_own(one) and ours.fullmatch(one["inference_id"])]
        for name in names:
            self._delete(name)
        return [f"removed inference endpoint {name}" for name in names]

    def _check_licence(self) -> None:
        with explained("read the licence"):
            licence = self._client.transport.perform_request("GET", "/_license")["license"]
        if licence["type"] not in LICENCES or licence["status"] != "active":
            raise InstallError(
                f"Elasticsearch's text_similarity_reranker needs an active Enterprise or trial licence, and the "
                f"cluster's is {licence['type']} ({licence['status']}): rerank in the client, which needs none",
                step="read the licence",
            )

    def _fulfils(self, found: Mapping[str, Any] | None, wish: Wish) -> bool:
        """Return whether an endpoint is as wished for; a token cannot be read back, so a pair is scored."""
        if found is None or ("headers" in found) != (wish.token is not None):
            return False
        return found.items() >= wish.settings().items() and self._failure() is None

    def _failure(self) -> str | None:
        """Return why a pair cannot be scored through Elasticsearch; None when it can."""
        try:
            self._check_licence()
            self._probe(self._name)
        except InstallError as error:
            return str(error)
        return None

    def _create(self, name: str, wish: Wish) -> None:
        """Create an endpoint; Elasticsearch sends the server a request first."""
        with explained_of_server("create the inference endpoint"):
            self._request("PUT", name, wish.endpoint())

    def _probe(self, name: str) -> None:
        """Score two texts through Elasticsearch.

        Raises:
            InstallError: the cluster cannot reach the server, or its response is wrong.
        """
        step = "score a pair through Elasticsearch"
        with explained_of_server(step):
            scores = self._request("POST", name, PROBE)["rerank"]
        if len(scores) != len(PROBE["input"]):
            raise InstallError(f"{step}: the server gave {len(scores)} scores for two texts", step=step)

    def _delete(self, name: str) -> None:
        """Delete an endpoint, unless it is gone already."""
        with explained(f"remove the inference endpoint {name}"), contextlib.suppress(NotFoundError):
            self._request("DELETE", name)

    def _request(self, method: str, name: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        path = f"{ROOT}/{name}"
        answer: dict[str, Any] = self._client.transport.perform_request(method, path, body=body, timeout=TIMEOUT_S)
        return answer
