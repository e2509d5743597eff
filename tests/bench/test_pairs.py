"""All 1,225 pairs of 50 documents whose states are there: the shipped duo model, and one of a [CLS] bi-encoder.

make bench TEST_OPTIONS="-k test_pairs -s"
"""

import gzip
import json
import statistics
import time
from itertools import combinations, islice
from pathlib import Path

import pytest

from osrerank.adapt.adapt import AdaptOptions, adapt
from osrerank.export.export_model import ExportOptions, export_model
from osrerank.scoring.registry import load_scorer
from osrerank.settings import Settings
from tests.servers import ROOT

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1800)]

SAMPLE = ROOT / "osrerank" / "data" / "squad"
DOCUMENTS, QUESTIONS = 50, 20


@pytest.fixture(params=["osrerank/duo", "bge-small-en-v1.5"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "osrerank/duo":
        return str(request.param)
    source = request.getfixturevalue("shared").parent / "models" / request.param
    adapt(source, tmp_path / "mono", AdaptOptions(layers=1, bias=-3.0, keep_weights=True))
    export_model(tmp_path / "mono", tmp_path / request.param, ExportOptions(kind="duo", precision="int8"))
    return str(tmp_path / request.param)


def test_all_pairs_of_fifty_documents(model: str, tmp_path: Path) -> None:
    with gzip.open(SAMPLE / "corpus.jsonl.gz", "rt", encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in islice(lines, DOCUMENTS)]
    questions = [line.split("\t")[1] for line in (SAMPLE / "queries.tsv").read_text().splitlines()[:QUESTIONS]]
    scorer = load_scorer(model, settings=Settings(states="file", states_folder=tmp_path / "states"))
    pairs = list(combinations(range(DOCUMENTS), 2))
    scorer.score("warm", texts, pairs)
    times_ms = []
    for question in questions:
        began = time.perf_counter()
        scores = scorer.score(question, texts, pairs)
        times_ms.append((time.perf_counter() - began) * 1000)
        assert (scores.inferences, scores.known, scores.encoded) == (len(pairs), DOCUMENTS, 0)
    scorer.close()
    slowest = max(times_ms)
    print(f"\n{Path(model).name}: {len(pairs)} pairs in {statistics.median(times_ms):.0f} ms, at most {slowest:.0f}")
