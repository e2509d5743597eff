import pytest
from opensearchpy import ConflictError, NotFoundError

from osrerank.errors import InstallError
from osrerank.server.opensearch.ml_commons import Models
from osrerank.testing import ManualClock

IN_USE = ConflictError(409, "m_l_validation_exception", {"error": "1 models are still using this connector"})


class Cluster:
    """Has one connector and nothing else; its deletion is answered in turn by what is given."""

    def __init__(self, *deletions):
        self.deletions = list(deletions)
        self.transport = self

    def perform_request(self, method, path, body=None):
        if method == "GET":
            return {"connector_id": "another", "model_group_id": "group"}
        if method == "POST":
            found = [{"_id": "c", "_source": {"description": "made by osrerank pipeline install for books"}}]
            return {"hits": {"hits": found if "connectors" in path else []}}
        answer = self.deletions.pop(0) if len(self.deletions) > 1 else self.deletions[0]
        if isinstance(answer, Exception):
            raise answer
        return {}


def models_of(cluster):
    clock = ManualClock(0.0)
    return Models(cluster, "books", clock, clock.sleep), clock


def test_a_connector_is_deleted_once_its_model_is_gone_also_by_somebody_else():
    models, clock = models_of(Cluster(IN_USE, IN_USE, {}))
    assert models.remove() == ["connector c"]
    assert clock() == pytest.approx(0.4)
    models, _ = models_of(Cluster(NotFoundError(404, "not found", {})))
    assert models.remove() == ["connector c"]


def test_a_connector_that_stays_in_use_is_an_error():
    models, clock = models_of(Cluster(IN_USE))
    with pytest.raises(InstallError, match="still using this connector"):
        models.remove()
    assert 10 < clock() < 11


def test_a_connector_that_opensearch_takes_for_the_kept_models_is_left_with_a_warning(caplog):
    models, clock = models_of(Cluster(IN_USE))
    assert models.remove(keep="model") == []
    assert 10 < clock() < 11
    assert "[connector-left] OpenSearch keeps connector c: 1 models are still using this connector" in caplog.text
