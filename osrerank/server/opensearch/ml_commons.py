"""ml-commons' models that call a rerank server: each with a connector of its own within, and under a new id."""

import secrets
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from opensearchpy import ConflictError, NotFoundError, OpenSearch, RequestError

from osrerank.errors import InstallError
from osrerank.server.explained import explained, explained_of_server
from osrerank.server.opensearch.cluster import RERANK_PATH

ROOT = "/_plugins/_ml"
DEPLOY_TIMEOUT_S = 60.0
DELETE_TIMEOUT_S = 10.0
LEFT_AFTER_S = 10.0
"""Seconds after which a model that no pipeline uses was left by an interrupted installation; others end sooner."""
PAUSE_S = 0.2
REQUEST_BODY = '{"query":"${parameters.query}","documents":${parameters.documents},"model":"${parameters.model}"}'
PROBE = {"query_text": "ready", "text_docs": ["ready", "not ready"]}


@dataclass(frozen=True, slots=True)
class CallBounds:
    """Bounds of the cluster's calls to a rerank server, of each node.

    Attributes:
        connect_s: seconds to connect.
        read_s: seconds to wait for the answer; then the search fails, or has the first pass's order. Clients of
            OpenSearch give up after ten by themselves.
        retries: how often a call is repeated that was answered 429 or 5xx.
        connections: open ones.
    """

    connect_s: int = 2
    read_s: int = 8
    retries: int = 0
    connections: int = 30

    def client_config(self) -> dict[str, int]:
        """Return them as the connector's ``client_config``."""
        return {
            "connection_timeout": self.connect_s,
            "read_timeout": self.read_s,
            "max_retry_times": self.retries,
            "max_connection": self.connections,
        }


@dataclass(frozen=True, slots=True)
class Model:
    """A model of the cluster that calls a rerank server.

    Attributes:
        state: such as ``DEPLOYED``.
        server: the rerank server.
        sends_token: whether calls carry a bearer token.
        bounds: the bounds of the calls, as the connector's ``client_config``.
    """

    state: str
    server: str
    sends_token: bool
    bounds: Mapping[str, int]


def connector_of(name: str, server: str, token: str | None, bounds: CallBounds) -> dict[str, Any]:
    """Return the connector's definition.

    Args:
        name: the connector's.
        server: the rerank server, ``http(s)://host:port``.
        token: sent as a bearer token; ml-commons stores it encrypted and requires a credential even if none is needed.
        bounds: the bounds of its calls.
    """
    headers = {"Content-Type": "application/json"}
    if token is not None:
        headers["Authorization"] = "Bearer ${credential.token}"
    action = {
        "action_type": "predict",
        "method": "POST",
        "url": server + RERANK_PATH,
        "headers": headers,
        "request_body": REQUEST_BODY,
        "pre_process_function": "connector.pre_process.cohere.rerank",
        "post_process_function": "connector.post_process.cohere.rerank",
    }
    return {
        "name": name,
        "version": "1",
        "protocol": "http",
        "parameters": {"model": "osrerank"},
        "client_config": bounds.client_config(),
        "credential": {"token": token or "none"},
        "actions": [action],
    }


class Models:
    """The models of a search pipeline, each in a model group that ml-commons makes for it.

    Args:
        client: the cluster's.
        pipeline: the search pipeline's name.
        clock: returns seconds, never decreasing.
        sleep: waits for so many seconds.
    """

    def __init__(
        self,
        client: OpenSearch,
        pipeline: str,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._client = client
        self._clock = clock
        self._sleep = sleep
        self.label = f"osrerank-pipeline-{pipeline}"
        self._description = f"made by osrerank pipeline install for {pipeline}"

    def create(self, server: str, token: str | None, bounds: CallBounds) -> str:
        """Create a model with its connector, and return its id; OpenSearch begins to deploy it.

        Raises:
            InstallError: the cluster refuses it.
        """
        name = f"{self.label}-{secrets.token_hex(4)}"
        body = {
            "name": name,
            "description": self._description,
            "function_name": "remote",
            "connector": {**connector_of(name, server, token, bounds), "description": self._description},
        }
        with explained("create the model"):
            return str(self._request("POST", "models/_register?deploy=true", body)["model_id"])

    def check(self, model_id: str) -> None:
        """Wait until a new model is deployed, and score two texts through it.

        Raises:
            InstallError: it is not deployed within a minute, the cluster cannot reach the server, or its response is
                wrong.
        """
        until = self._clock() + DEPLOY_TIMEOUT_S
        while (model := self.find(model_id)) is None or model.state != "DEPLOYED":
            if model is None or model.state == "DEPLOY_FAILED" or self._clock() > until:
                state = "gone" if model is None else model.state
                raise InstallError(f"deploy the model: its state is {state}", step="deploy the model")
            self._sleep(PAUSE_S)
        self.probe(model_id)

    def find(self, model_id: str) -> Model | None:
        """Return a model; None when there is none that calls a rerank server."""
        with explained("look at the model"):
            try:
                model = self._request("GET", f"models/{model_id}")
            except NotFoundError:
                return None
        if "connector" not in model:
            return None
        action = model["connector"]["actions"][0]
        config = model["connector"].get("client_config", {})
        bounds = {name: config.get(name) for name in CallBounds().client_config()}
        server = str(action["url"]).removesuffix(RERANK_PATH)
        return Model(str(model["model_state"]), server, "Authorization" in action["headers"], bounds)

    def probe(self, model_id: str) -> None:
        """Score two texts through OpenSearch.

        Raises:
            InstallError: the cluster cannot reach the server, or its response is wrong.
        """
        step = "score a pair through OpenSearch"
        with explained_of_server(step):
            answer = self._request("POST", f"_predict/text_similarity/{model_id}", PROBE)
        outputs = answer["inference_results"][0]["output"]
        if len(outputs) != len(PROBE["text_docs"]):
            raise InstallError(f"{step}: the server gave {len(outputs)} scores for two texts", step=step)

    def ids(self) -> list[str]:
        """Return the ids of the pipeline's models."""
        with explained("look for models"):
            return [*self._search("models")]

    def remove(self, spent: Collection[str | None] | None = None, *, keep: str | None = None) -> list[str]:
        """Delete models of the pipeline with their groups, and return what was deleted.

        Args:
            spent: ids of models; None for all, and for groups without a model.
            keep: the id of a model that stays, even if it is spent.

        Raises:
            InstallError: the cluster refuses.
        """
        with explained("remove the model"):
            models, groups = self._search("models"), self._search("model_groups")
            chosen = {one: name for one, name in models.items() if one != keep and (spent is None or one in spent)}
            removed = [self._delete("models", one) for one in chosen]
            emptied = [one for one, name in groups.items() if spent is None or name in chosen.values()]
            return [*removed, *(self._delete("model_groups", one) for one in emptied)]

    def remove_left(self, unused: Collection[str], used: Callable[[], str | None]) -> None:
        """Delete those of unused models that are still there after ten seconds, except the one in use by then."""
        until = self._clock() + LEFT_AFTER_S
        while left := {*unused} & {*self.ids()} - {used()}:
            if self._clock() > until:
                self.remove(left)
                return
            self._sleep(PAUSE_S)

    def _delete(self, kind: str, found: str) -> str:
        """Delete a model or a group, unless it is gone already; return what it was.

        A model may still be deploying, and a group may still count a model that is gone.
        """
        until = self._clock() + DELETE_TIMEOUT_S
        while True:
            try:
                if kind == "models":
                    self._request("POST", f"models/{found}/_undeploy")
                self._request("DELETE", f"{kind}/{found}")
            except (RequestError, ConflictError):
                if self._clock() > until:
                    raise
                self._sleep(PAUSE_S)
            except NotFoundError:
                break
            else:
                break
        return f"{kind.removesuffix('s').replace('_', ' ')} {found}"

    def _search(self, kind: str) -> dict[str, str]:
        """Return id -> name of the pipeline's models or groups; a group has the name of its model."""
        query = {"query": {"match_phrase": {"name": self.label}}, "size": 100, "_source": ["name", "description"]}
        try:
            hits = self._request("POST", f"{kind}/_search", query)["hits"]["hits"]
        except NotFoundError:  # none was ever created
            return {}
        sources = {hit["_id"]: hit["_source"] for hit in hits}
        return {
            one: source["name"] for one, source in sources.items() if source.get("description") == self._description
        }

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        answer: dict[str, Any] = self._client.transport.perform_request(method, f"{ROOT}/{path}", body=body)
        return answer
