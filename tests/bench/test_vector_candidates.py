"""Searches with two sources of candidates over 100,000 passages: the first pass, reranked, and with vectors besides.

BENCH_PASSAGES=1000 make bench TEST_OPTIONS="-k vector_candidates -s"

Vectors and states are drawn at random, because no time depends on their values; so they are made in a minute.
"""

import os
import time
from itertools import islice

import numpy as np
import pytest
from opensearchpy.helpers import bulk

from osrerank import connect
from osrerank.retrieval.vector_field import VectorField
from osrerank.scoring.states.record import Record, TextStates
from osrerank.states import joined_scorer
from tests.bench.test_many_states import passages
from tests.bench.test_states import questions, show, took_ms

pytestmark = [pytest.mark.bench, pytest.mark.timeout(3600)]

PASSAGES = int(os.environ.get("BENCH_PASSAGES", "100000"))
AT_ONCE = 2_000
INDEX = "squad"
SHORT = 200
"""Words that the model reads as one passage."""
MAPPING = {"mappings": {"properties": {"text": {"type": "text"}}}}
CASES = (
    ("BM25", False),
    ("BM25 reranked", {"depth": 100}),
    ("BM25 and vectors reranked", {"depth": 100, "candidates": {"vectors": 100}}),
)


def fill(client, scorer, field):
    """Index the passages with random vectors, and keep random states of them."""
    draw = np.random.default_rng(1)
    every = enumerate(text for text in passages() if len(text.split()) < SHORT)
    nothing, no_pieces = np.zeros((0, 0, scorer.records.hidden), dtype=np.float32), np.zeros(0, dtype=np.uint16)
    while some := list(islice(every, min(AT_ONCE, PASSAGES))):
        if some[0][0] >= PASSAGES:
            break
        texts = [text for _, text in some]
        vectors = draw.standard_normal((len(texts), field.dimension)).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        states = [Record.of(TextStates(nothing, no_pieces, one), scorer.records.profile) for one in vectors]
        scorer.records.write(scorer.store, dict(zip(scorer.keys_of(texts), states, strict=True)))
        rows = zip(some, field.values(vectors), strict=True)
        bulk(
            client,
            (
                {"_index": INDEX, "_id": str(number), "text": text, field.name: row,
                 field.digest_field: field.digest_of(text)}
                for (number, text), row in rows
            ),
        )  # fmt: skip
    client.indices.refresh(index=INDEX)


@pytest.mark.parametrize("engine", ["embedded", "opensearch"])
def test_two_sources(engine, request, tmp_path, monkeypatch):
    url = f"embedded:{tmp_path / 'engine'}" if engine == "embedded" else request.getfixturevalue("opensearch_url")
    monkeypatch.setenv("OSRERANK_STATES_FOLDER", str(tmp_path / "states"))
    monkeypatch.setenv("OSRERANK_CACHE_LOCAL_MB", "0")
    with connect(url) as client:
        vectors, scorer = client.reranker.text_vectors(), joined_scorer(client)
        field = VectorField("osrerank_vector", vectors.dimension, "byte", vectors.model, ("text",))
        client.indices.create(index=INDEX, body=field.with_field(MAPPING))
        began = time.perf_counter()
        fill(client, scorer, field)
        print(f"\n{engine}: {client.count(index=INDEX)['count']:,} passages in {time.perf_counter() - began:,.0f} s")
        client.warm_up()
        response = client.search(next(iter(questions())), index=INDEX, rerank=CASES[-1][1])
        assert response["rerank"]["candidates"]["vectors"] == 100
        assert response["rerank"]["stages"][0]["encoded"] == 0
        print(f"{'ms a search':<44} {'median':>9} {'p95':>8} {'p99':>8}")
        for name, rerank in CASES:
            show(f"{engine}: {name}", [took_ms(client, question, rerank) for question in questions()])
        client.indices.delete(index=INDEX)
