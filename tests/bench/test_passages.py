"""What passages cost beside the model: cutting, ordering and memory, for 100 documents of 20,000 words."""

import random
import time
import tracemalloc

import pytest

from osrerank.options.passages import Passages
from osrerank.stages.passages import PassageStage
from osrerank.stages.sentences import SentenceStage
from osrerank.testing import FunctionScorer
from tests.rankings import ranking_of

pytestmark = pytest.mark.bench


@pytest.mark.parametrize("stage", ["maxp", "maxp sampled", "sentences"])
def test_long_documents(stage):
    rng = random.Random(1)
    words = [f"word{place}" for place in range(5000)] + ["end."] * 300
    ranking = ranking_of([" ".join(rng.choices(words, k=20_000)) for _ in range(100)])
    scorer = FunctionScorer(lambda _query, text: float(len(text)))
    options = Passages(policy="sampled" if "sampled" in stage else "first")
    under_test = SentenceStage(scorer) if stage == "sentences" else PassageStage(scorer, options)
    started = time.perf_counter()
    outcome = under_test.rerank(ranking)
    took_s = time.perf_counter() - started
    tracemalloc.start()
    under_test.rerank(ranking)
    peak_mb = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    print(f"{stage}: {outcome.reports[0].inferences} parts, {took_s:.2f} s, {peak_mb:.0f} MB at the peak")
