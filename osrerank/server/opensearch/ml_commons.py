"""Create, check and remove the ml-commons models that call a rerank server; each has its own connector and a new id."""

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
"""Seconds after which an unused model counts as left by an interrupted installation; an installation takes less."""
PAUSE_S = 0.2
REQUEST_BODY = '{"query":"${parameters.query}","documents":${parameters.documents},"model":"${parameters.model}"}'
PROBE = {"query_text": "ready", "text_docs": ["ready", "not ready"]}


@dataclass(frozen=True, slots=True)
class CallBounds:
    """Bounds of each node's calls to a rerank server.

    Attributes:
        connect_s: the seconds to connect.
        read_s: the seconds to wait for the response; then the search fails, or has the first pass's order. By default,
            clients of OpenSearch give up after ten seconds.
        retries: the number of retries of a call that was answered 429 or 5xx.
        connections: the number of open connections.
    """

    connect_s: int = 2
    read_s: int = 8
    retries: int = 0
    connections: int = 30

    def client_config(self) -> dict[str, int]:
        """Return the bounds in the form of the connector's ``client_config``."""
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
        state: the state of the deployment, such as ``DEPLOYED``.
        server: the address of the rerank server.
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
        name: the name of the connector.
        server: the address of the rerank server, ``http(s)://host:port``.
        token: the bearer token; None if the server needs none. ml-commons stores it encrypted.
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
        "credential": {"token": token or "none"},  # ml-commons requires one
        "actions": [action],
    }


class Models:
    """The models of a search pipeline, each in a model group that ml-commons makes for it.

    Args:
        client: a client of the cluster.
        pipeline: the name of the search pipeline.
        clock: returns seconds, never decreasing.
        sleep: waits for a number of seconds.
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
        """Return a model; None if it does not exist, or calls no server."""
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
            response = self._request("POST", f"_predict/text_similarity/{model_id}", PROBE)
        outputs = response["inference_results"][0]["output"]
        if len(outputs) != len(PROBE["text_docs"]):
            raise InstallError(f"{step}: the server gave {len(outputs)} scores for two texts", step=step)

    def ids(self) -> list[str]:
        """Return the ids of the pipeline's models."""
        with explained("look for models"):
            return [*self._search("models")]

    def remove(self, model_ids: Collection[str | None] | None = None, *, keep: str | None = None) -> list[str]:
        """Delete models of the pipeline with their groups, and return the kind and id of each deleted object.

        Args:
            model_ids: the ids of the models; None for all models, and for groups without a model.
            keep: the id of a model that is not deleted.

        Raises:
            InstallError: the cluster refuses a request.
        """
        with explained("remove the model"):
            models, groups = self._search("models"), self._search("model_groups")
            names = {
                model_id: name
                for model_id, name in models.items()
                if model_id != keep and (model_ids is None or model_id in model_ids)
            }
            removed = [self._delete("models", model_id) for model_id in names]
            emptied = [group_id for group_id, name in groups.items() if model_ids is None or name in names.values()]
            return [*removed, *(self._delete("model_groups", group_id) for group_id in emptied)]

    def remove_left(self, unused_ids: Collection[str], find_used_id: Callable[[], str | None]) -> None:
        """Wait ten seconds, then delete the unused models that still exist and are not in use by then.

        Args:
            unused_ids: the ids of models that are not in use now.
            find_used_id: returns the id of the model in use.
        """
        until = self._clock() + LEFT_AFTER_S
        while remaining_ids := {*unused_ids} & {*self.ids()} - {find_used_id()}:
            if self._clock() > until:
                self.remove(remaining_ids)
                return
            self._sleep(PAUSE_S)

    def _delete(self, kind: str, object_id: str) -> str:
        """Delete a model or a group if it exists; return its kind and id.

        OpenSearch refuses while a model is being deployed, and while a group counts a deleted model: then try again.
        """
        until = self._clock() + DELETE_TIMEOUT_S
        while True:
            try:
                if kind == "models":
                    self._request("POST", f"models/{object_id}/_undeploy")
                self._request("DELETE", f"{kind}/{object_id}")
            except (RequestError, ConflictError):
                if self._clock() > until:
                    raise
                self._sleep(PAUSE_S)
            except NotFoundError:
                break
            else:
                break
        return f"{kind.removesuffix('s').replace('_', ' ')} {object_id}"

    def _search(self, kind: str) -> dict[str, str]:
        """Return the name of each model or group of the pipeline by its id; a group has the name of its model."""
        query = {"query": {"match_phrase": {"name": self.label}}, "size": 100, "_source": ["name", "description"]}
        try:
            hits = self._request("POST", f"{kind}/_search", query)["hits"]["hits"]
        except NotFoundError:  # no model was ever created
            return {}
        sources = {hit["_id"]: hit["_source"] for hit in hits}
        described = {key: source for key, source in sources.items() if source.get("description") == self._description}
        return {key: source["name"] for key, source in described.items()}

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        response: dict[str, Any] = self._client.transport.perform_request(method, f"{ROOT}/{path}", body=body)
        return response
