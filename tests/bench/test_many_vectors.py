"""The vectors of 100,000 passages of SQuAD's lengths: time, peak memory and size; and searches of long documents.

BENCH_PASSAGES=1000 make bench TEST_OPTIONS="-k many_vectors -s"

Without BENCH_PASSAGES there are 100,000, and two cores need more than an hour. The passages are sentences of the
bundled sample, drawn anew: as many as a passage of the sample has.
"""

import json
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import islice

import pytest
from opensearchpy.helpers import bulk

from osrerank import connect
from osrerank.indexing.build import build_vectors
from osrerank.indexing.documents import document_vectors
from osrerank.options.sentences import Sentences
from osrerank.stages.sentence_splitting import blank_markup, split_into_sentences
from tests.bench.test_vectors import questions, sample, show
from tests.servers import ROOT

pytestmark = [pytest.mark.bench, pytest.mark.timeout(4 * 3600)]

PASSAGES = int(os.environ.get("BENCH_PASSAGES", "100000"))
INDEX = "squad"
PAPERS = 60


def passages() -> Iterator[str]:
    """Yield passages without end, all of them different."""
    texts = [document["text"] for document in sample()]
    divided = [
        [
            text[start:end]
            for block in split_into_sentences(blank_markup(text), Sentences(max_words=200))
            for start, end in block
        ]
        for text in texts
    ]
    pool = [sentence for sentences in divided for sentence in sentences]
    draw = random.Random(7)
    while True:
        yield " ".join(draw.choices(pool, k=len(draw.choice(divided))))


def test_time_memory_and_size_of_100_000_vectors(tmp_path, monkeypatch):
    url = f"embedded:{tmp_path / 'engine'}"
    monkeypatch.setenv("OSRERANK_VECTORS_FOLDER", str(tmp_path / "vectors"))
    with connect(url) as client:
        documents = (
            {"_index": INDEX, "_id": str(number), "text": text}
            for number, text in enumerate(islice(passages(), PASSAGES))
        )
        bulk(client, documents, refresh=True)
    command = [sys.executable, "-m", "osrerank", "--url", url, "--json", "vectors", "build", "--index", INDEX]
    began = time.perf_counter()
    built = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT).stdout
    took_s = time.perf_counter() - began
    content = json.loads(built)
    peak_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1000
    print(f"\n{content['documents']:,} documents in {took_s:,.0f} s: {content['encoded'] / took_s:.1f} a second")
    print(
        f"peak memory {peak_mb:,.0f} MB; {content['stored'] / 1e6:,.1f} MB, "
        f"{content['stored'] / content['records']:.0f} bytes a passage"
    )
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT)
    print(f"once more, when all are there: {time.perf_counter() - began:,.0f} s")


def test_time_of_searches_of_long_documents(tmp_path, monkeypatch):
    """Papers of 5,000 words, all passages, 100 queries of depth 20: without vectors, and with them."""
    monkeypatch.setenv("OSRERANK_VECTORS_FOLDER", str(tmp_path / "vectors"))
    words = " ".join(islice(passages(), 100 * PAPERS)).split()  # of more than 50 words each
    papers = [" ".join(words[5000 * number : 5000 * (number + 1)]) for number in range(PAPERS)]
    assert len(papers[-1].split()) == 5000
    rerank = {"depth": 20, "passages": {"words": 150, "stride": 150, "limit": 100, "least_words": 350}}
    url = f"embedded:{tmp_path / 'engine'}"
    with connect(url, rerank=rerank) as client:
        bulk(client, ({"_index": "papers", "_id": str(n), "text": text} for n, text in enumerate(papers)), refresh=True)
        sampled_questions = [question for question, _ in zip(questions(), range(100), strict=False)]
        monkeypatch.setenv("OSRERANK_VECTORS", "off")
        with connect(url, rerank=rerank) as without:
            without.warm_up()
            (once_ms,) = [_papers_ms(without, question) for question in sampled_questions[:1]]
        monkeypatch.delenv("OSRERANK_VECTORS")
        began = time.perf_counter()
        done = build_vectors(client, "papers")
        print(f"\n{done}; {time.perf_counter() - began:,.0f} s")
        size = document_vectors(client).store.size()
        print(f"{size.records} records, {size.stored_bytes / size.records:,.0f} bytes each")
        times = [_papers_ms(client, question) for question in sampled_questions]
        print(f"a search without vectors {once_ms / 1000:.1f} s; 100 with them {sum(times) / 1000:.1f} s")
        show("papers, depth 20, all passages", times)


def _papers_ms(client, question):
    began = time.perf_counter()
    response = client.search(question, index="papers", rerank=True)
    took_ms = (time.perf_counter() - began) * 1000
    stage = response["rerank"]["stages"][0]
    assert (stage["candidates"], stage["inferences"]) == (20, 20 * 34)
    return took_ms
