"""SQuAD from ../shared: reranking hurts with one checkpoint, and promises are kept on held-back questions.

Prints the figures of docs/decision.md (``pytest -s``).
"""

import json
import random
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from opensearchpy import helpers

from osrerank import connect
from osrerank.cli import cli
from osrerank.decision.advice.advise import IndexAdvice, advise, judged_queries
from osrerank.decision.advice.choose import choose
from osrerank.formats.topics import read_queries
from osrerank.formats.trec import read_qrels

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3_600)]
QUESTIONS, SPLITS = 1_000, 200


@pytest.fixture(scope="module")
def advice(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> IndexAdvice:
    """Of all-MiniLM-L6-v2 (osrerank/minilm-l6) without BM25, over the 2,067 paragraphs of the development set."""
    folder = tmp_path_factory.mktemp("squad")
    arguments = ["convert", "squad", str(shared / "squad" / "dev-v1.1.json"), "--output", str(folder)]
    assert CliRunner().invoke(cli, arguments).exit_code == 0
    qrels = read_qrels(folder / "qrels.txt")
    queries = random.Random(0).sample(judged_queries(read_queries(folder / "queries.tsv"), qrels), QUESTIONS)
    english = {"type": "text", "analyzer": "english"}
    with connect(f"embedded:{folder}", model="osrerank/minilm-l6", rerank={"blend": "replace"}) as client:
        client.indices.create(index="squad", body={"mappings": {"properties": {"title": english, "text": english}}})
        with (folder / "corpus.jsonl").open(encoding="utf-8") as lines:
            documents = (json.loads(line) for line in lines)
            actions = ({"_index": "squad", "_id": document.pop("id"), **document} for document in documents)
            helpers.bulk(client, actions, refresh=True)
        return advise(client, "squad", queries, qrels)


def test_a_checkpoint_that_hurts_helps_with_bm25(advice: IndexAdvice) -> None:
    print(advice.verdict, advice.choice.setting, advice.choice.promised)  # noqa: T201
    assert advice.verdict.outcome == "hurts"
    assert advice.recommended["blend"] == "linear"
    assert advice.choice.promised > advice.verdict.before


@pytest.mark.parametrize("size", [50, 100])
def test_promises_are_kept_on_held_back_questions(advice: IndexAdvice, size: int) -> None:
    """Of the settings chosen on some questions the mean over all others is within the interval promised."""
    kept_promises = [_is_kept(advice, size, seed) for seed in range(SPLITS)]
    level, difference, sound = (float(np.mean(flags)) for flags in zip(*kept_promises, strict=True))
    claim = f"{level:.3f} of the promises, {difference:.3f} of the differences, {sound:.3f} of the decisions"
    print(f"{size} questions of {QUESTIONS}, {SPLITS} splits: {claim}")  # noqa: T201
    assert min(level, difference, sound) >= 0.88


def _is_kept(advice: IndexAdvice, size: int, seed: int) -> tuple[bool, bool, bool]:
    """Return whether level and difference are in their intervals, and whether a decision has the right sign."""
    rows = random.Random(seed).sample(range(QUESTIONS), QUESTIONS)
    seen, others = rows[:size], rows[size:]
    query_ids = [advice.current_hits[row].query.query_id for row in seen]
    choice = choose(
        query_ids, advice.first_pass_values[seen], {setting: values[seen] for setting, values in advice.values.items()}
    )
    level = float(advice.values[choice.setting][others].mean())
    difference = level - float(advice.first_pass_values[others].mean())
    verdict = choice.verdict
    sound = verdict.outcome == "undecided" or (verdict.outcome == "helps") == (difference > 0)
    return choice.low <= level <= choice.high, verdict.low <= difference <= verdict.high, sound
