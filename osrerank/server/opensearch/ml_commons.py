"""Create, check and remove the models with which OpenSearch's ml-commons plugin calls a rerank server.

These "remote" models compute nothing in OpenSearch. Each has a connector, which contains the URL of the rerank server
and the format of the request. OpenSearch puts each model into a model group of the same name.
"""

import secrets
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from opensearchpy import ConflictError, NotFoundError, OpenSearch, RequestError

from osrerank.errors import InstallError
from osrerank.server.failures import WRONG_SCORE_COUNT, explain_failures
from osrerank.server.opensearch.cluster import RERANK_PATH

ROOT = "/_plugins/_ml"
"""The beginning of all paths of ml-commons' REST API."""
DEPLOY_TIMEOUT_S = 60.0
DELETE_TIMEOUT_S = 10.0
MAX_INSTALL_S = 10.0
"""The maximum time between creating a model and storing the search pipeline that calls it, in seconds. A model that no
pipeline calls after this time comes from an interrupted installation."""
POLL_S = 0.2
"""The pause between two requests that check the state of a model, in seconds."""
REQUEST_BODY = '{"query":"${parameters.query}","documents":${parameters.documents},"model":"${parameters.model}"}'
"""The body of the calls to the rerank server. OpenSearch replaces the parameters, such as ``${parameters.query}``."""
TEST_REQUEST = {"query_text": "ready", "text_docs": ["ready", "not ready"]}


@dataclass(frozen=True, slots=True)
class CallLimits:
    """The timeouts, retries and connections of each node's calls to a rerank server.

    Attributes:
        connect_s: the timeout for connecting, in seconds.
        read_s: the timeout for the response, in seconds. It should be below 10 seconds, after which OpenSearch's
            clients stop waiting for a search by default.
        retries: the number of times that a call is repeated after a 429 or 5xx response.
        connections: the maximum number of connections that each node opens to the server.
    """

    connect_s: int = 2
    read_s: int = 8
    retries: int = 0
    connections: int = 30

    def client_config(self) -> dict[str, int]:
        """Return the limits in the format of a connector's ``client_config``."""
        return {
            "connection_timeout": self.connect_s,
            "read_timeout": self.read_s,
            "max_retry_times": self.retries,
            "max_connection": self.connections,
        }


@dataclass(frozen=True, slots=True)
class Model:
    """What `Models.find` reads about a model that calls a rerank server.

    Attributes:
        state: the state of the deployment, such as ``DEPLOYED``.
        server: the address of the rerank server, such as ``http://10.0.0.5:8088``.
        sends_token: whether calls contain a bearer token.
        client_config: the limits of the calls, in the format of `CallLimits.client_config`.
    """

    state: str
    server: str
    sends_token: bool
    client_config: Mapping[str, int]


def define_connector(name: str, server: str, token: str | None, limits: CallLimits) -> dict[str, Any]:
    """Return the definition of a connector to a rerank server.

    The token is a credential of the connector, because ml-commons encrypts credentials when it stores them.
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
        "client_config": limits.client_config(),
        "credential": {"token": token or "none"},  # ml-commons requires a credential
        "actions": [action],
    }


class Models:
    """The models that osrerank created for a search pipeline.

    Args:
        client: a client whose user is allowed to change models.
        pipeline: the name of the search pipeline.
        clock: returns a time in seconds, for timeouts.
        sleep: pauses for a number of seconds.
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
        self.name_prefix = f"osrerank-pipeline-{pipeline}"
        self._description = f"made by osrerank pipeline install for {pipeline}"

    def create(self, server: str, token: str | None, limits: CallLimits) -> str:
        """Create a model with its connector, begin to deploy it, and return its id."""
        name = f"{self.name_prefix}-{secrets.token_hex(4)}"
        body = {
            "name": name,
            "description": self._description,
            "function_name": "remote",
            "connector": {**define_connector(name, server, token, limits), "description": self._description},
        }
        with explain_failures("create the model"):
            return str(self._request("POST", "models/_register?deploy=true", body)["model_id"])

    def wait_until_works(self, model_id: str) -> None:
        """Wait until a new model is deployed, and score two texts through it.

        Raises:
            InstallError: the model is not deployed within a minute, the cluster cannot reach the server, or the
                server's response is wrong.
        """
        deadline_at_s = self._clock() + DEPLOY_TIMEOUT_S
        while True:
            model = self.find(model_id)
            state = "deleted" if model is None else model.state
            if state == "DEPLOYED":
                break
            if state in ("deleted", "DEPLOY_FAILED") or self._clock() > deadline_at_s:
                raise InstallError(
                    f"the model {model_id} was not deployed: its state is {state}; see the log of the cluster",
                    step="deploy the model",
                )
            self._sleep(POLL_S)
        self.score_test_texts(model_id)

    def find(self, model_id: str) -> Model | None:
        """Return a model, or None if it does not exist or has no connector."""
        with explain_failures("read the model"):
            try:
                model = self._request("GET", f"models/{model_id}")
            except NotFoundError:
                return None
        if "connector" not in model:
            return None
        action = model["connector"]["actions"][0]
        config = model["connector"].get("client_config", {})
        client_config = {name: config.get(name) for name in CallLimits().client_config()}
        return Model(
            state=str(model["model_state"]),
            server=str(action["url"]).removesuffix(RERANK_PATH),
            sends_token="Authorization" in action["headers"],
            client_config=client_config,
        )

    def score_test_texts(self, model_id: str) -> None:
        """Score two texts through OpenSearch.

        Raises:
            InstallError: the cluster cannot reach the server, or the server's response is wrong.
        """
        step = "score texts through OpenSearch"
        with explain_failures(step, calls_server=True):
            response = self._request("POST", f"_predict/text_similarity/{model_id}", TEST_REQUEST)
        outputs = response["inference_results"][0]["output"]
        if len(outputs) != len(TEST_REQUEST["text_docs"]):
            raise InstallError(WRONG_SCORE_COUNT.format(len(outputs)), step=step)

    def list_ids(self) -> list[str]:
        """Return the ids of the search pipeline's models."""
        with explain_failures("search for models"):
            return list(self._find_names_by_id("models"))

    def remove(self, model_ids: Collection[str | None] | None = None, *, keep: str | None = None) -> list[str]:
        """Delete models of the search pipeline, and their groups.

        Args:
            model_ids: the ids of the models to delete, or None to delete all models and groups.
            keep: the id of a model that is not deleted, even if it is in ``model_ids``.

        Returns:
            The kind and id of each deleted model and group, such as "model Xy" and "model group Zw".
        """
        with explain_failures("remove the model"):
            names_by_model_id = self._find_names_by_id("models")
            names_by_group_id = self._find_names_by_id("model_groups")
            unwanted_names_by_id = {
                model_id: name
                for model_id, name in names_by_model_id.items()
                if model_id != keep and (model_ids is None or model_id in model_ids)
            }
            unwanted_group_ids = [
                group_id
                for group_id, name in names_by_group_id.items()
                if model_ids is None or name in unwanted_names_by_id.values()  # a group has the name of its model
            ]
            removed = [self._delete("models", model_id) for model_id in unwanted_names_by_id]
            removed += [self._delete("model_groups", group_id) for group_id in unwanted_group_ids]
            return removed

    def remove_orphans(self, unused_ids: Collection[str], find_used_id: Callable[[], str | None]) -> None:
        """Delete those of the unused models that the search pipeline does not begin to call within `MAX_INSTALL_S`.

        Another installation might be about to store a search pipeline that calls one of them.

        Args:
            unused_ids: the ids of the models that the search pipeline does not call now.
            find_used_id: returns the id of the model that the search pipeline calls, or None if it calls none.
        """
        deadline_at_s = self._clock() + MAX_INSTALL_S
        while True:
            orphan_ids = set(unused_ids).intersection(self.list_ids()) - {find_used_id()}
            if not orphan_ids:
                return
            if self._clock() > deadline_at_s:
                self.remove(orphan_ids)
                return
            self._sleep(POLL_S)

    def _delete(self, kind: str, object_id: str) -> str:
        """Delete a model or a group if it exists, and return its kind and id, such as "model group Zw".

        OpenSearch refuses to delete a model while it is being deployed, and a group shortly after its model was
        deleted. The request is therefore repeated until it succeeds, for at most `DELETE_TIMEOUT_S`.

        Args:
            kind: "models" or "model_groups", as in the paths of the REST API.
            object_id: the id of the model or the group.
        """
        deadline_at_s = self._clock() + DELETE_TIMEOUT_S
        while True:
            try:
                if kind == "models":
                    self._request("POST", f"models/{object_id}/_undeploy")
                self._request("DELETE", f"{kind}/{object_id}")
            except (RequestError, ConflictError):
                if self._clock() > deadline_at_s:
                    raise
                self._sleep(POLL_S)
                continue
            except NotFoundError:
                pass  # it is deleted already
            return f"{'model' if kind == 'models' else 'model group'} {object_id}"

    def _find_names_by_id(self, kind: str) -> dict[str, str]:
        """Return the names of the search pipeline's models, or of their groups, by their ids: ``{"Xy": "name"}``."""
        query = {"query": {"match_phrase": {"name": self.name_prefix}}, "size": 100, "_source": ["name", "description"]}
        try:
            hits = self._request("POST", f"{kind}/_search", query)["hits"]["hits"]
        except NotFoundError:  # the cluster has never had a model
            return {}
        return {
            hit["_id"]: hit["_source"]["name"] for hit in hits if hit["_source"].get("description") == self._description
        }

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        response: dict[str, Any] = self._client.transport.perform_request(method, f"{ROOT}/{path}", body=body)
        return response
