"""Models of ml-commons that an installation creates and deletes."""

import pytest
from opensearchpy import NotFoundError, RequestError

from osrerank.errors import InstallError
from osrerank.server.opensearch.ml_commons import Models
from osrerank.testing import ManualClock

DEPLOYING = RequestError(400, "status_exception", {"error": "Model cannot be deleted in deploying state"})
GONE = NotFoundError(404, "not found", {})


class Cluster:
    """Has one model in one state, whose deletion is answered in turn by what is given."""

    def __init__(self, *deletions, state="DEPLOYING"):
        self.deletions = list(deletions)
        self.state = state
        self.transport = self

    def perform_request(self, method, path, body=None):
        if path.endswith("/_search"):
            source = {"name": "a name", "description": "made by osrerank pipeline install for books"}
            return {"hits": {"hits": [{"_id": "m", "_source": source}] if "models" in path else []}}
        if method == "GET":
            actions = [{"url": "http://a/v1/rerank", "headers": {}}]
            return {"model_state": self.state, "connector": {"actions": actions}}
        if method == "DELETE":
            answer = self.deletions.pop(0) if len(self.deletions) > 1 else self.deletions[0]
            if isinstance(answer, Exception):
                raise answer
        return {}


def models_of(cluster):
    clock = ManualClock(0.0)
    return Models(cluster, "books", clock, clock.sleep), clock


@pytest.mark.parametrize("last", [{}, GONE])
def test_a_model_being_deployed_is_deleted_afterwards(last):
    models, clock = models_of(Cluster(DEPLOYING, DEPLOYING, last))
    assert models.remove() == ["model m"]
    assert clock() == pytest.approx(0.4)


def test_a_model_that_cannot_be_deleted_is_an_error():
    models, clock = models_of(Cluster(DEPLOYING))
    with pytest.raises(InstallError, match="cannot be deleted in deploying state"):
        models.remove()
    assert 10 < clock() < 11


def test_removing_models_keeps_the_named_model():
    models, _ = models_of(Cluster({}))
    assert models.remove({"m"}, keep="m") == []
    assert models.remove({"another"}) == []


@pytest.mark.parametrize(("state", "seconds"), [("DEPLOYING", 60), ("DEPLOY_FAILED", 0)])
def test_a_model_that_is_not_deployed_in_time_is_an_error(state, seconds):
    models, clock = models_of(Cluster({}, state=state))
    with pytest.raises(InstallError, match=f"was not deployed: its state is {state}"):
        models.wait_until_works("m")
    assert seconds <= clock() < seconds + 1
