"""The shipped model on the collection that ships in the package: what is promised is kept on other queries.

Its 100 questions are too few to decide: BM25 has the paragraph first in most of them (p = .066 at depth 20).
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from osrerank import Client, connect
from osrerank.cli.demo import INDEX, Sample, index_sample
from osrerank.decision.advice.advise import advise
from osrerank.decision.advice.choose import measured
from osrerank.types import Qrels, Query

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]
DEPTHS = (10, 20)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with connect(f"embedded:{tmp_path_factory.mktemp('sample')}", rerank={"depth": 20}) as client:
        index_sample(client, Sample.load())
        yield client


def test_reranking_is_better_and_the_promise_is_kept(client: Client, tmp_path: Path) -> None:
    sample = Sample.load()
    queries = [Query(query_id, text) for query_id, text in sample.queries.items()]
    qrels = Qrels(sample.relevant)
    advice = advise(client, INDEX, queries, qrels, depths=DEPTHS)
    assert advice.verdict.difference > 0
    assert advice.verdict.better > advice.verdict.worse
    assert advice.verdict.outcome == "helps" or (advice.verdict.more_queries or 0) > 0
    half = advise(client, INDEX, queries[:50], qrels, depths=DEPTHS)
    others = [one for one in advice.found if one.query in queries[50:]]
    kept = measured(others, qrels, advice.measure, half.choice.setting).mean()
    assert half.choice.low <= kept <= half.choice.high
