"""Documents that change and go while searches run, on three engines: no score is that of another text."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osrerank import Client, connect
from osrerank.scoring.registry import load_scorer
from osrerank.settings import Settings
from tests.property.test_vectors import DOCUMENTS, QUERY, SLOW

pytest.importorskip("torch")
pytest.importorskip("onnx")

pytestmark = pytest.mark.integration

WORDS = ["blood", "pressure", "is", "low", "when", "the", "heart", "slow", "water", "wing", "flow", "heat"]
TEXTS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=8).map(" ".join)


@pytest.fixture(scope="module")
def scores_by_text(model: Path) -> dict[str, float]:
    """Scores that are known to be those of a text."""
    return {}


@SLOW
@given(changes=st.lists(st.tuples(st.integers(0, 3), st.none() | TEXTS), min_size=1, max_size=12))
def test_a_document_that_changed_never_has_the_score_of_its_old_text(
    engine_url: str,
    index_name: str,
    model: Path,
    scores_by_text: dict[str, float],
    tmp_path: Path,
    changes: list[tuple[int, str | None]],
) -> None:
    truth = load_scorer(str(model), settings=Settings(vectors="off"))
    with connect(engine_url, model=str(model)) as client:
        fill(client, index_name, list(enumerate(DOCUMENTS)))
        writer = threading.Thread(target=fill, args=(client, index_name, changes))
        writer.start()
        answers = [search(client, index_name)]
        while writer.is_alive():
            answers.append(search(client, index_name))
        writer.join()
        client.indices.refresh(index=index_name)
        answers.append(search(client, index_name))
    now = dict(enumerate(DOCUMENTS)) | dict(changes)
    last = {hit["_id"]: hit["_source"]["text"] for hit in answers[-1]}
    assert last == {str(place): text for place, text in now.items() if text is not None}
    for hit in (hit for hits in answers for hit in hits):
        text = hit["_source"]["text"]
        if text not in scores_by_text:
            scores_by_text[text] = float(truth.score(QUERY, [text], [(0,)]).values[0])
        assert hit["_rerank"]["vectors"]["logit"] == pytest.approx(scores_by_text[text], abs=1e-6), text


def search(client: Client, index: str) -> list[dict[str, Any]]:
    body = {"query": {"match_all": {}}, "size": 20}
    options = {"query": QUERY, "fields": ["text"], "deadline_ms": None}  # a slow machine would end it early
    response = client.search(index=index, body=body, rerank=options)
    assert not response["hits"]["hits"] or response["rerank"]["applied"] is True
    hits: list[dict[str, Any]] = response["hits"]["hits"]
    return hits


def fill(client: Client, index: str, changes: Sequence[tuple[int, str | None]]) -> None:
    for place, text in changes:
        address = {"_index": index, "_id": str(place)}
        lines: list[Any] = [{"delete": address}] if text is None else [{"index": address}, {"text": text}]
        client.bulk(body=lines, refresh=True)
