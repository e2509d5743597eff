"""Small collections in the real files' layouts, of the sample's paragraphs and questions."""

import gzip
import io
import json
import random
import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import quote

import cbor2

from tests.servers import ROOT

SAMPLE = ROOT / "osrerank" / "data" / "squad"
QUERIES, PARAGRAPHS, TOP = 10, 40, 10
Files = dict[str, bytes]


@dataclass(frozen=True)
class Sample:
    """Some questions, the paragraph that answers each, and others.

    Attributes:
        texts: of the paragraphs; the first are the questions' own, in their order.
        questions: of the sample.
        titles: of the paragraphs' articles.
    """

    texts: tuple[str, ...]
    questions: tuple[str, ...]
    titles: tuple[str, ...]


@cache
def sample() -> Sample:
    """Return the sample, always the same."""
    with gzip.open(SAMPLE / "corpus.jsonl.gz", "rt", encoding="utf-8") as lines:
        texts = {entry["id"]: entry["text"] for entry in map(json.loads, lines)}
    answers = dict(line.split()[::2] for line in (SAMPLE / "qrels.txt").read_text("utf-8").splitlines())
    asked: dict[str, str] = {}
    for line in (SAMPLE / "queries.tsv").read_text("utf-8").splitlines():
        query_id, question = line.split("\t")
        asked.setdefault(answers[query_id], question)
    own_queries = list(asked)[:QUERIES]
    other_ids = random.Random(1).sample(sorted(set(texts) - set(asked)), PARAGRAPHS - QUERIES)
    chosen = own_queries + other_ids
    titles = tuple(query.rpartition("/")[0].replace("_", " ") for query in chosen)
    return Sample(tuple(texts[query] for query in chosen), tuple(asked[query] for query in own_queries), titles)


def tar(files: Mapping[str, bytes], form: str = "gz") -> bytes:
    """Return an archive."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode=f"w:{form}") as archive:  # type: ignore[call-overload]  # the mode is a text
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return made.getvalue()


def lines(rows: Iterable[Iterable[Any]], separator: str = "\t") -> bytes:
    return "".join(separator.join(map(str, row)) + "\n" for row in rows).encode()


def msmarco_passage() -> dict[str, Files]:
    """Return MS MARCO's passages: collection, top 1,000 and triples."""
    some = sample()
    queries = list(enumerate(some.questions))
    qrels = lines((query, 0, query, 1) for query, _ in queries)
    collection = lines(enumerate(some.texts))
    top = [(query, doc, question, text) for query, question in queries for doc, text in enumerate(some.texts)]
    random.Random(1).shuffle(top)
    triples = [
        (question, some.texts[query], some.texts[QUERIES + (query + step) % (PARAGRAPHS - QUERIES)])
        for step in range(10)
        for query, question in queries
    ]
    archive_files = {
        "collection.tsv": collection,
        "queries.dev.small.tsv": lines(queries),
        "qrels.dev.small.tsv": qrels,
    }
    return {
        "msmarco-passage": {"collectionandqueries.tar.gz": tar(archive_files)},
        "msmarco-passage-top1000": {"top1000.dev.tar.gz": tar({"top1000.dev": lines(top)})},
        "msmarco-passage-triples": {"triples.train.small.tar.gz": tar({"triples.train.small.tsv": lines(triples)})},
    }


def msmarco_document() -> dict[str, Files]:
    """Return MS MARCO's documents, of three paragraphs each, and TREC's queries of two years."""
    some = sample()
    documents = [
        (f"D{doc}", f"https://{doc}.example/", some.titles[doc], " ".join(some.texts[doc : doc + 3]))
        for doc in range(PARAGRAPHS - 2)
    ]
    trec = "".join(
        f"<DOC>\n<DOCNO>{doc}</DOCNO>\n<TEXT>\n{url}\n{title}\n{body}\n</TEXT>\n</DOC>\n"
        for doc, url, title, body in documents
    )
    queries = list(enumerate(some.questions))
    zipped = gzip.compress

    def top(part: slice) -> bytes:
        rows = []
        for query, _ in queries[part]:
            other_documents = random.Random(query).sample(
                sorted({name for name, *_ in documents} - {f"D{query}"}), TOP - 1
            )
            other_documents.insert(query % TOP, f"D{query}")
            rows += [
                (query, "Q0", name, rank, -rank, "QueryLikelihood")
                for rank, name in enumerate(other_documents, start=1)
            ]
        return zipped(lines(rows, " "))

    def judged(part: slice) -> bytes:
        return lines(((query, 0, f"D{query}", 1) for query, _ in queries[part]), " ")

    train, dev, years = slice(0, 6), slice(6, 8), {"2019": slice(0, 5), "2020": slice(5, 10)}
    files = {
        "msmarco-docs.trec.gz": zipped(trec.encode()),
        "msmarco-doctrain-queries.tsv.gz": zipped(lines(queries[train])),
        "msmarco-doctrain-qrels.tsv.gz": zipped(judged(train)),
        "msmarco-doctrain-top100.gz": top(train),
        "msmarco-docdev-queries.tsv.gz": zipped(lines(queries[dev])),
        "msmarco-docdev-qrels.tsv.gz": zipped(judged(dev)),
        "msmarco-docdev-top100.gz": top(dev),
    }
    tested: Files = {}
    for year, part in years.items():
        tested[f"msmarco-test{year}-queries.tsv.gz"] = zipped(lines(queries[part]))
        tested[f"msmarco-doctest{year}-top100.gz"] = top(part)
        tested[f"{year}qrels-docs.txt"] = judged(part)
    return {"msmarco-document": files, "trec-dl-document": tested}


def trec_car() -> dict[str, Files]:
    """Return TREC-CAR 2.0: paragraphs, and a page for each question in the test benchmark and in five folds."""
    some = sample()
    ids = [f"{index:040x}" for index in range(PARAGRAPHS)]
    paragraphs = [[0, name.encode(), [[0, text]]] for name, text in zip(ids, some.texts, strict=True)]

    def part(name: str, queries: Iterable[int]) -> Files:
        pages, outlines, qrels = [], [], []
        for query in queries:
            page = f"enwiki:{quote(some.titles[query])}%20{query}"
            heading = quote(some.questions[query])
            section = [0, some.questions[query], heading.encode()]
            told = [[1, paragraphs[query]]]
            pages.append([0, some.titles[query], page.encode(), [[*section, told]]])
            outlines.append([0, some.titles[query], page.encode(), [[*section, []]]])
            qrels.append(f"{page}/{heading} 0 {ids[query]} 1")
        return {
            name: _car(pages, 0),
            f"{name}-outlines.cbor": _car(outlines, 1),
            f"{name}-hierarchical.qrels": "\n".join(qrels).encode(),  # no newline at the end, as in the folds
        }

    test = {
        f"benchmarkY1/benchmarkY1-test/{name}": one for name, one in part("test.pages.cbor", range(QUERIES)).items()
    }
    folds = {}
    for fold in range(5):
        training_pages = part(f"fold-{fold}-base.train.cbor", (2 * fold, 2 * fold + 1))
        folds.update({f"train/{name}": one for name, one in training_pages.items()})
    tiny = ROOT / "tests" / "data" / "tiny-bert-tensorflow"
    weights = {
        f"pretrained_models_exp898_model.ckpt-1000000{file.name.removeprefix('model.ckpt-7')}": file.read_bytes()
        for file in tiny.glob("model.ckpt-7.*")
    }
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        for name in ("bert_config.json", "vocab.txt"):
            archive.write(tiny / name, f"uncased_L-24_H-1024_A-16/{name}")
    corpus = {"paragraphCorpus/dedup.articles-paragraphs.cbor": _car(paragraphs, 2)}
    return {
        "trec-car-v2.0": {
            "paragraphCorpus.v2.0.tar.xz": tar(corpus, "xz"),
            "benchmarkY1-test.v2.0.tar.xz": tar(test, "xz"),
        },
        "trec-car-bert": {
            "BERT_Large_pretrained_on_TREC_CAR_training_set_1M_iterations.tar.gz": tar(weights),
            "uncased_L-24_H-1024_A-16.zip": zipped.getvalue(),
        },
        "trec-car-v2.0-train": {"train.v2.0.tar.xz": tar(folds, "xz")},
    }


def _car(items: list[Any], kind: int) -> bytes:
    return cbor2.dumps(["CAR", [kind], "test"]) + b"\x9f" + b"".join(map(cbor2.dumps, items)) + b"\xff"


def newswire() -> dict[str, Files]:
    """Return topics and judgments of Robust04, Core17 and Core18."""
    some = sample()
    topics, judged = {}, {}
    for name, first in (("robust04", 301), ("core17", 307), ("core18", 321)):
        end = " </num>" if name == "core18" else ""
        topics[name] = "".join(
            f"<top>\n\n<num> Number: {first + query}{end}\n<title> {question}\n\n<desc> Description:\n-\n</top>\n"
            for query, question in enumerate(some.questions)
        ).encode()
        judged[name] = lines(((first + query, 0, f"{name}-{query}", 1) for query in range(QUERIES)), " ")
    folds = [[str(301 + query), str(302 + query)] for query in range(0, QUERIES, 2)]
    return {
        "trec-robust04": {
            "04.testset.gz": gzip.compress(topics["robust04"]),
            "qrels.robust2004.txt": judged["robust04"],
            "robust04-paper2-folds.json": json.dumps(folds).encode(),
        },
        "trec-core17": {"core_nist.txt": topics["core17"], "qrels.txt": judged["core17"]},
        "trec-core18": {"topics2018.txt": topics["core18"], "qrels2018.txt": judged["core18"]},
    }


def licensed() -> Files:
    """Return what one has from NIST and LDC: documents of the three collections, and tweets."""
    some = sample()
    numbered_texts = list(enumerate(zip(some.titles, some.texts, strict=True)))
    sgml = "".join(
        f"<DOC>\n<DOCNO> robust04-{doc} </DOCNO>\n<HEADLINE>{title}</HEADLINE>\n<TEXT>\n{text}\n</TEXT>\n</DOC>\n"
        for doc, (title, text) in numbered_texts
    )
    post = "".join(
        json.dumps({"id": f"core18-{doc}", "title": title, "contents": [{"type": "sanitized_html", "content": text}]})
        + "\n"
        for doc, (title, text) in numbered_texts
    )
    files = {
        "disks45/ft/ft911/ft911_1": sgml.encode("iso-8859-1", "xmlcharrefreplace"),
        "WashingtonPost.v2/data/1.jl": post.encode(),
    }
    for doc, (title, text) in numbered_texts:
        files[f"nyt_corpus/1987/{doc}.xml"] = (
            f'<nitf><head><docdata><doc-id id-string="core17-{doc}"/></docdata></head><body><body.head><hedline>'
            f'<hl1>{_escaped(title)}</hl1></hedline></body.head><body.content><block class="full_text">'
            f"<p>{_escaped(text)}</p></block></body.content></body></nitf>"
        ).encode()
    tweets = [{"id_str": str(doc), "full_text": text.partition(". ")[0]} for doc, (_, text) in numbered_texts]
    topics = "".join(
        f"<top>\n<num> Number: MB{query + 1:03}</num>\n<query>{question}</query>\n</top>\n"
        for query, question in enumerate(some.questions)
    )
    judged = [(query + 1, 0, doc, int(doc == query)) for query in range(QUERIES) for doc in range(query, query + 4)]
    return files | {
        "microblog/topics.txt": topics.encode(),
        "microblog/qrels.txt": lines(judged, " "),
        "microblog/tweets.jsonl": "".join(json.dumps(tweet) + "\n" for tweet in tweets).encode(),
    }


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")
