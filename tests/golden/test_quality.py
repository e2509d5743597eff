"""The shipped model on a real collection: ``pytest -m slow tests/golden``."""

import json
from pathlib import Path

import pytest

from osrerank.evaluation.measures import evaluate
from osrerank.formats.trec import read_qrels, read_run
from osrerank.scoring.registry import load_scorer
from osrerank.settings import DEFAULT_MODEL
from osrerank.types import Run, ScoredDocument

DEPTH, FLOOR = 30, 0.64
"""The least nDCG@10 over so many of BM25's hits of TREC DL 2019, where BM25 itself has .5058 and the model .6560."""


@pytest.mark.slow
def test_ndcg_of_the_shipped_model_on_trec_dl_2019(shared: Path) -> None:
    folder = shared / "msmarco-dl19"
    with (folder / "corpus.jsonl").open(encoding="utf-8") as lines:
        texts = {document["id"]: document["text"] for document in map(json.loads, lines)}
    queries = dict(line.split("\t", 1) for line in (folder / "queries.tsv").read_text(encoding="utf-8").splitlines())
    scorer = load_scorer(DEFAULT_MODEL)
    rankings = {}
    for query_id, hits in read_run(folder / "runs" / "BM25.txt").rankings.items():
        first = hits[:DEPTH]
        documents = [texts[doc_id] for doc_id, _score in first]
        values = scorer.score(queries[query_id], documents, [(index,) for index in range(len(documents))]).values
        scored = [ScoredDocument(doc_id, value) for (doc_id, _), value in zip(first, values.tolist(), strict=True)]
        rankings[query_id] = tuple(sorted(scored, key=lambda document: -document.score))
    measured = evaluate(read_qrels(folder / "qrels.full.txt"), Run(rankings), ["nDCG@10"])
    assert measured.overall["nDCG@10"] >= FLOOR
