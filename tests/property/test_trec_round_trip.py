"""A run that is written and read again keeps its order in every reader's arithmetic, and its scores where they fit."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from osrerank.formats.trec import read_run, sort_as_trec_eval, write_run
from osrerank.types import Run, ScoredDocument

IDS = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zs", "Zl", "Zp")), min_size=1, max_size=8)
SCORES = st.floats(min_value=-1e30, max_value=1e30, width=64)


@st.composite
def rankings(draw: st.DrawFn) -> tuple[ScoredDocument, ...]:
    doc_ids = draw(st.lists(IDS, min_size=1, max_size=12, unique=True))
    return tuple(ScoredDocument(doc_id, draw(SCORES)) for doc_id in doc_ids)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(by_query=st.dictionaries(IDS.filter(lambda text: not text.startswith(("#", "\ufeff"))), rankings(), min_size=1))
def test_a_written_and_read_run_keeps_its_order(folder: Path, by_query: dict[str, tuple[ScoredDocument, ...]]) -> None:
    path = folder / "run.txt"
    write_run(path, Run(by_query, name="tag"))
    run = read_run(path)
    for query_id, documents in by_query.items():
        ids = [document.doc_id for document in documents]
        assert [document.doc_id for document in run.rankings[query_id]] == ids
        assert [document.doc_id for document in sort_as_trec_eval(run.rankings[query_id], single_precision=True)] == ids


@settings(max_examples=100, deadline=None)
@given(
    scores=st.lists(
        st.floats(min_value=-(2.0**100), max_value=2.0**100, width=32), min_size=1, max_size=20, unique=True
    )
)
def test_decreasing_32_bit_scores_of_a_run_survive_exactly(folder: Path, scores: list[float]) -> None:
    documents = tuple(ScoredDocument(f"d{n}", score) for n, score in enumerate(sorted(scores, reverse=True)))
    write_run(folder / "exact.txt", Run({"q": documents}))
    read_back = read_run(folder / "exact.txt").rankings["q"]
    assert [np.float32(document.score) for document in read_back] == [np.float32(score) for _id, score in documents]
