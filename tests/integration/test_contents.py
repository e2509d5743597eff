"""BM25 and RM3 over the field ``contents``, in both engines, with the constants published for the collection."""

import math
from pathlib import Path

import pytest
from opensearchpy import OpenSearch

from osrerank.cli import main
from osrerank.formats.trec import read_run
from osrerank.retrieval.requests import is_embedded

pytestmark = pytest.mark.integration

FILLER = 40
DOCUMENTS = {  # DOCNO -> date, headline, text
    "FT911-1": ("910401", "Salt and pressure", "Doctors warn of arteries."),
    "FT911-2": ("910402", "Arteries", "Salt in food, salt at sea, and its pressure on the arteries."),
    "FT911-3": ("910403", "Sea water", "The sea holds salt."),
    **{f"FT912-{number}": (f"9105{number:02}", f"Market {number}", "Shares rose.") for number in range(FILLER)},
}
TERMS = {  # the words that the `english` analyzer keeps, of the three that have salt or pressure
    "FT911-1": ["910401", "salt", "pressur", "doctor", "warn", "arteri"],
    "FT911-2": ["910402", "arteri", "salt", "food", "salt", "sea", "it", "pressur", "arteri"],
    "FT911-3": ["910403", "sea", "water", "sea", "hold", "salt"],
}
FILLER_TERMS = 5  # date, "market", a number, "share", "rose"


def write_news(folder: Path) -> Path:
    records = (
        f"<DOC>\n<DOCNO>{doc_id}</DOCNO>\n<DATE>{date}\n</DATE>\n<HEADLINE>{headline}</HEADLINE>\n"
        f"<TEXT>\n{text}\n</TEXT>\n</DOC>\n"
        for doc_id, (date, headline, text) in DOCUMENTS.items()
    )
    (folder / "ft911").write_text("".join(records))
    return folder / "ft911"


def bm25(query: list[str], k1: float, b: float) -> dict[str, float]:
    """Return each document's score by Lucene's formula over all of its words; short lengths are stored exactly."""
    lengths = [len(terms) for terms in TERMS.values()] + [FILLER_TERMS] * FILLER
    mean = sum(lengths) / len(lengths)
    scores = dict.fromkeys(TERMS, 0.0)
    for term in query:
        holding = [doc_id for doc_id, terms in TERMS.items() if term in terms]
        idf = math.log(1 + (len(lengths) - len(holding) + 0.5) / (len(holding) + 0.5))
        for doc_id in holding:
            frequency = TERMS[doc_id].count(term)
            norm = k1 * (1 - b + b * len(TERMS[doc_id]) / mean)
            scores[doc_id] += idf * frequency / (frequency + norm)
    return scores


def test_bm25_and_rm3_over_contents(engine: OpenSearch, engine_url: str, index_name: str, tmp_path: Path) -> None:
    news = write_news(tmp_path)
    main(["index", "robust04", str(news), "--index", index_name, "--url", engine_url, "--contents"])
    queries = tmp_path / "queries.tsv"
    queries.write_text("1\tsalt pressure\n")
    runs = {}
    for name, options in {
        "bm25": ["--query-fields", "contents"],
        "rm3": ["--rm3-options", "field=contents"],
    }.items():
        output = tmp_path / f"{name}.run"
        batch = ["--queries", str(queries), "--index", index_name, "--output", str(output), "--no-rerank"]
        main(["--url", engine_url, "run", *batch, *options])
        runs[name] = {one.doc_id: one.score for one in read_run(output).rankings["1"]}
    constants = (1.2, 0.75) if is_embedded(engine) else (0.9, 0.4)
    assert runs["bm25"] == pytest.approx(bm25(["salt", "pressur"], *constants), abs=1e-4)
    assert runs["rm3"].keys() >= TERMS.keys()
    assert runs["rm3"] != pytest.approx(runs["bm25"])
    source = engine.get(index=index_name, id="FT911-1")["_source"]
    assert source["contents"] == "910401\nSalt and pressure\nDoctors warn of arteries."
    assert (source["title"], source["text"]) == ("Salt and pressure", "Doctors warn of arteries.")
