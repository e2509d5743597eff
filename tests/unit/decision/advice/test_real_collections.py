"""Whole collections from ../shared: reranking hurts with one checkpoint, and promises are kept on held-back queries.

Prints the figures of docs/decision.md (``pytest -s``).
"""

import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from opensearchpy import helpers

from osrerank import connect
from osrerank.cli import cli
from osrerank.decision.advice.advise import advise, judged_queries
from osrerank.decision.advice.choose import choose
from osrerank.decision.advice.sample import Setting
from osrerank.decision.advice.verdict import Floats
from osrerank.formats.topics import read_queries
from osrerank.formats.trec import read_qrels

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3_600)]
SPLITS = 200


@dataclass(frozen=True)
class Indexed:
    """A collection in an index of the embedded engine that is called after it."""

    name: str
    url: str
    queries: Path
    qrels: Path


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty directory, so that no settings file is found."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def squad(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Indexed:
    """The 2,067 paragraphs and 10,570 questions of SQuAD's development set."""
    folder = tmp_path_factory.mktemp("squad")
    arguments = ["convert", "squad", str(shared / "squad" / "dev-v1.1.json"), "--output", str(folder / "files")]
    assert CliRunner().invoke(cli, arguments).exit_code == 0
    return _indexed("squad", folder, folder / "files" / "corpus.jsonl", folder / "files")


@pytest.fixture(scope="module")
def scifact(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Indexed:
    folder = shared / "scifact"
    return _indexed("scifact", tmp_path_factory.mktemp("scifact"), folder / "corpus.jsonl", folder / "test")


def _indexed(name: str, folder: Path, corpus: Path, judged: Path) -> Indexed:
    english = {"type": "text", "analyzer": "english"}
    body = {"mappings": {"properties": {"title": english, "text": english}}}
    url = f"embedded:{folder / 'engine'}"
    with connect(url) as client, corpus.open(encoding="utf-8") as lines:
        client.indices.create(index=name, body=body)
        documents = (json.loads(line) for line in lines)
        actions = (
            {"_index": name, "_id": one["id"], "title": one["title"] or "", "text": one["text"]} for one in documents
        )
        helpers.bulk(client, actions, refresh=True)
    return Indexed(name, url, judged / "queries.tsv", judged / "qrels.txt")


def test_a_checkpoint_that_hurts(squad: Indexed) -> None:
    """all-MiniLM-L6-v2, which is osrerank/mono-small, orders SQuAD's paragraphs by itself worse than BM25 does."""
    Path("osrerank.toml").write_text('[rerank]\nblend = "replace"\n')
    lines = squad.queries.read_text("utf-8").splitlines(keepends=True)
    Path("queries.tsv").write_text("".join(random.Random(0).sample(lines, 200)), "utf-8")
    files = ["--index", "squad", "--queries", "queries.tsv", "--qrels", str(squad.qrels), "--output", "out.toml"]
    arguments = ["--json", "--model", "osrerank/mono-small", "--url", squad.url, "advise", *files]
    result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    found = json.loads(result.stdout)
    print(found["decision"], found["verdict"], found["choice"]["setting"], found["choice"]["promised"])  # noqa: T201
    assert found["decision"] == "hurts"
    assert found["verdict"]["high"] < 0
    assert found["recommended"]["blend"] == "linear"  # BM25 blended in, the same checkpoint helps
    assert found["choice"]["promised"] > found["verdict"]["before"]


@pytest.fixture(params=["squad", "scifact"])
def sample(request: pytest.FixtureRequest) -> tuple[str, list[str], Floats, dict[Setting, Floats]]:
    """A collection's queries with the measure of the first pass and of every setting."""
    one: Indexed = request.getfixturevalue(request.param)
    qrels = read_qrels(one.qrels)
    queries = judged_queries(read_queries(one.queries), qrels)
    queries = random.Random(0).sample(queries, min(1_000, len(queries)))
    with connect(one.url, rerank={"depth": 50}) as client:
        advice = advise(client, one.name, queries, qrels, depths=(10, 20, 50))
    return one.name, [query.query_id for query in queries], advice.before, dict(advice.values)


def test_promises_are_kept_on_held_back_queries(sample: Any) -> None:
    """Of the settings chosen on some queries the mean over all others is within the interval promised.

    An interval of 95% is for the mean of all queries there are. That of the others is further off by its own chance, so
    that fewer are within: with n queries seen and m others 2 Phi(1.96 / sqrt(1 + n / m)) - 1.
    """
    name, query_ids, before, values = sample
    for size in (50, 100):
        others = len(query_ids) - size
        expected = 2 * NormalDist().cdf(1.96 / math.sqrt(1 + size / others)) - 1
        kept = [_is_kept(query_ids, before, values, size, seed) for seed in range(SPLITS)]
        level, difference, sound = (float(np.mean(flags)) for flags in zip(*kept, strict=True))
        said = f"{level:.3f} of the promises, {difference:.3f} of the differences, {sound:.3f} of the decisions"
        print(name, f"{size} queries of {len(query_ids)}, {SPLITS} splits: {said}; {expected:.3f} expected")  # noqa: T201
        assert min(level, difference, sound) >= 0.88


def _is_kept(
    query_ids: Sequence[str], before: Floats, values: dict[Setting, Floats], size: int, seed: int
) -> tuple[bool, bool, bool]:
    """Return whether level and difference are in their intervals, and whether a decision has the right sign."""
    places = random.Random(seed).sample(range(len(query_ids)), len(query_ids))
    seen, others = places[:size], places[size:]
    of_seen = {one: found[seen] for one, found in values.items()}
    choice = choose([query_ids[place] for place in seen], before[seen], of_seen)
    level = float(values[choice.setting][others].mean())
    difference = level - float(before[others].mean())
    verdict = choice.verdict
    sound = verdict.outcome == "undecided" or (verdict.outcome == "helps") == (difference > 0)
    return choice.low <= level <= choice.high, verdict.low <= difference <= verdict.high, sound
