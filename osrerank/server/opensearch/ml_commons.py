"""ml-commons' connectors and models: a connector calls a rerank server, a model gives it an id in OpenSearch."""

import logging
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from opensearchpy import ConflictError, NotFoundError, OpenSearch

from osrerank.errors import InstallError
from osrerank.server.opensearch.cluster import explained, reason_of

ROOT = "/_plugins/_ml"
MADE_BY = "made by osrerank pipeline install"
DEPLOY_TIMEOUT_S = 60.0
DELETE_TIMEOUT_S = 10.0
PAUSE_S = 0.2
REQUEST_BODY = '{"query":"${parameters.query}","documents":${parameters.documents},"model":"${parameters.model}"}'
PROBE = {"query_text": "ready", "text_docs": ["ready", "not ready"]}

logger = logging.getLogger(__name__)


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


def connector_of(name: str, server: str, token: str | None, bounds: CallBounds | None = None) -> dict[str, Any]:
    """Return the connector's definition.

    Args:
        name: the connector's.
        server: the rerank server, ``http(s)://host:port``.
        token: sent as a bearer token; ml-commons stores it encrypted and requires a credential even if none is needed.
        bounds: of its calls; the usual ones if absent.
    """
    headers = {"Content-Type": "application/json"}
    if token is not None:
        headers["Authorization"] = "Bearer ${credential.token}"
    action = {
        "action_type": "predict",
        "method": "POST",
        "url": f"{server}/v1/rerank",
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
        "client_config": (bounds or CallBounds()).client_config(),
        "credential": {"token": token or "none"},
        "actions": [action],
    }


class Models:
    """The connectors, models and model groups of a search pipeline, under the pipeline's name.

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
        self._description = f"{MADE_BY} for {pipeline}"

    def create(self, server: str, token: str | None, bounds: CallBounds) -> str:
        """Create the connector and the model, deploy it, and return its id.

        Raises:
            InstallError: a step was refused, or the model is not deployed within a minute.
        """
        name = f"{self.label}-{secrets.token_hex(4)}"
        with explained("create the connector"):
            definition = {**connector_of(name, server, token, bounds), "description": self._description}
            connector = self._post("connectors/_create", definition)
        body = {
            "name": name,
            "description": self._description,
            "function_name": "remote",
            "connector_id": connector["connector_id"],
        }
        with explained("register the model"):
            registered = self._post("models/_register", body)
        model_id = str(registered.get("model_id") or self._registered(registered["task_id"]))
        with explained("deploy the model"):
            self._post(f"models/{model_id}/_deploy")
            self._await_deployment(model_id)
        return model_id

    def state(self, model_id: str) -> str | None:
        """Return the model's state, such as ``DEPLOYED``; None if there is no model."""
        with explained("look at the model"):
            model = self._get(f"models/{model_id}")
        return None if model is None else str(model["model_state"])

    def server(self, model_id: str) -> str | None:
        """Return the address that the model's connector calls; None when there is none."""
        connector = self._connector(model_id)
        return None if connector is None else str(connector["actions"][0]["url"]).removesuffix("/v1/rerank")

    def sends_token(self, model_id: str) -> bool:
        """Return whether the model's connector sends a bearer token."""
        connector = self._connector(model_id)
        return connector is not None and "Authorization" in connector["actions"][0]["headers"]

    def bounds(self, model_id: str) -> CallBounds | None:
        """Return the bounds of the connector's calls; None when it has none, or others than ours."""
        found = (self._connector(model_id) or {}).get("client_config") or {}
        names = CallBounds().client_config()
        if not set(names) <= set(found):
            return None
        return CallBounds(*(int(found[name]) for name in names))

    def _connector(self, model_id: str) -> dict[str, Any] | None:
        """Return the connector of a model; None when there is none."""
        with explained("look at the connector"):
            model = self._get(f"models/{model_id}") or {}
            return self._get(f"connectors/{model['connector_id']}") if "connector_id" in model else None

    def probe(self, model_id: str) -> None:
        """Score two texts through OpenSearch.

        Raises:
            InstallError: the cluster cannot reach the server, or its response is wrong.
        """
        step = "score a pair through OpenSearch"
        try:
            with explained(step):
                answer = self._post(f"_predict/text_similarity/{model_id}", PROBE)
        except InstallError as error:
            fix = "check that the cluster's nodes reach osrerank serve, and that OSRERANK_SERVER_TOKEN is its token"
            raise InstallError(f"{error}; {fix}", step=step) from error
        outputs = answer["inference_results"][0]["output"]
        if len(outputs) != len(PROBE["text_docs"]):
            raise InstallError(f"{step}: the server gave {len(outputs)} scores for two texts", step=step)

    def remove(self, *, keep: str | None = None) -> list[str]:
        """Undeploy and delete all of the pipeline, except the model to keep and its connector; return the names.

        ml-commons matches a connector's id word by word ("a-5x-b" has three). On a node whose ids share a word, it
        takes the kept model for a user of every connector. Such a connector is left until nothing is kept.
        """
        removed = []
        with explained("remove the model"):
            model = {} if keep is None else self._get(f"models/{keep}") or {}
            needed = {keep, model.get("connector_id"), model.get("model_group_id")}
            for kind in ("models", "connectors", "model_groups"):
                for found in self._find(kind):
                    if found in needed:
                        continue
                    if kind == "models":
                        self._post(f"models/{found}/_undeploy")
                    try:
                        self._delete(f"{kind}/{found}")
                    except ConflictError as error:
                        if keep is None or kind != "connectors":
                            raise
                        logger.warning("[connector-left] OpenSearch keeps connector %s: %s", found, reason_of(error))
                        continue
                    removed.append(f"{kind.removesuffix('s').replace('_', ' ')} {found}")
        return removed

    def _registered(self, task_id: str) -> str:
        """Wait for a registration in the background, and return the model's id."""
        until = self._clock() + DEPLOY_TIMEOUT_S
        while self._clock() < until:
            task = self._get(f"tasks/{task_id}") or {}
            if task.get("model_id"):
                return str(task["model_id"])
            if task.get("state") == "FAILED":
                raise InstallError(f"register the model: {task.get('error')}", step="register the model")
            self._sleep(PAUSE_S)
        raise InstallError("register the model: not finished within a minute", step="register the model")

    def _await_deployment(self, model_id: str) -> None:
        until = self._clock() + DEPLOY_TIMEOUT_S
        while (state := self.state(model_id)) != "DEPLOYED":
            if self._clock() > until or state in (None, "DEPLOY_FAILED"):
                raise InstallError(f"deploy the model: its state is {state}", step="deploy the model")
            self._sleep(PAUSE_S)

    def _find(self, kind: str) -> list[str]:
        """Return the ids of the pipeline's own."""
        query = {"query": {"match_phrase": {"name": self.label}}, "size": 100, "_source": ["description"]}
        try:
            found = self._post(f"{kind}/_search", query)
        except NotFoundError:  # none was ever created
            return []
        hits = found["hits"]["hits"]
        return [hit["_id"] for hit in hits if hit["_source"].get("description") == self._description]

    def _get(self, path: str) -> dict[str, Any] | None:
        try:
            answer: dict[str, Any] = self._client.transport.perform_request("GET", f"{ROOT}/{path}")
        except NotFoundError:
            return None
        return answer

    def _post(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        answer: dict[str, Any] = self._client.transport.perform_request("POST", f"{ROOT}/{path}", body=body)
        return answer

    def _delete(self, path: str) -> None:
        """Delete a model, connector or group; retry while ml-commons still counts a deleted user of it."""
        until = self._clock() + DELETE_TIMEOUT_S
        while True:
            try:
                self._client.transport.perform_request("DELETE", f"{ROOT}/{path}")
            except NotFoundError:
                return
            except ConflictError:
                if self._clock() > until:
                    raise
                self._sleep(PAUSE_S)
            else:
                return
