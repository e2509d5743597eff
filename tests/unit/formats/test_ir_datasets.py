"""Collections of ir_datasets where a path is asked for; a small one is registered, so that nothing is downloaded."""

from pathlib import Path
from typing import NamedTuple

import pytest

from osrerank.errors import LoaderError
from osrerank.formats.candidates import assemble_candidates, read_candidates
from osrerank.formats.sources import open_paths
from osrerank.formats.topics import read_queries
from osrerank.formats.trec import read_qrels, read_run


class Page(NamedTuple):
    doc_id: str
    title: str
    body: str
    raw: bytes

    def default_text(self) -> str:
        return f"{self.title} {self.body}"


@pytest.fixture
def collection_name(tmp_path: Path) -> str:
    library = pytest.importorskip("ir_datasets")
    formats = library.formats

    class Pages(formats.BaseDocs):
        pages = (Page("a", "Foxes", "a red fox", b"x"), Page("b", "Dogs", "an old dog", b"y"))

        def docs_iter(self):
            return iter(self.pages)

        def docs_cls(self):
            return Page

        def docs_store(self):
            return self

        def get_many(self, doc_ids):
            return {page.doc_id: page for page in self.pages if page.doc_id in doc_ids}

    class Asked(formats.BaseQueries):
        def queries_iter(self):
            return iter([library.formats.GenericQuery("q1", "red fox")])

    class Judged(formats.BaseQrels):
        def qrels_iter(self):
            return iter([library.formats.TrecQrel("q1", "a", 2, "0")])

    class Candidates(formats.BaseScoredDocs):
        def scoreddocs_iter(self):
            return iter([library.formats.GenericScoredDoc("q1", "b", 1.5), formats.GenericScoredDoc("q1", "a", 2.5)])

    name = f"osrerank-test-{tmp_path.name}"
    library.registry.register(name, library.Dataset(Pages(), Asked(), Judged(), Candidates()))
    library.registry.register(f"{name}-texts", library.Dataset(Pages()))
    fewer_pages = Pages()
    fewer_pages.pages = Pages.pages[:1]
    library.registry.register(f"{name}-fewer", library.Dataset(fewer_pages, Asked(), Candidates()))
    return f"ir_datasets:{name}"


def test_queries_judgments_and_candidates_of_ir_datasets_are_read(collection_name: str) -> None:
    assert [(query.query_id, query.text) for query in read_queries(collection_name)] == [("q1", "red fox")]
    assert read_qrels(collection_name).judgments == {"q1": {"a": 2}}
    assert [candidate.doc_id for candidate in read_run(collection_name).rankings["q1"]] == ["a", "b"]
    (only,) = read_candidates(collection_name)
    assert only.documents == (
        {"id": "a", "text": "a red fox", "title": "Foxes", "score": 2.5},
        {"id": "b", "text": "an old dog", "title": "Dogs", "score": 1.5},
    )
    assert [
        candidate_list.documents
        for candidate_list in assemble_candidates(collection_name, collection_name, collection_name)
    ] == [only.documents]


def test_a_candidate_whose_document_ir_datasets_lacks_is_named(collection_name: str) -> None:
    with pytest.raises(LoaderError, match="-fewer has the candidate 'b' for query 'q1', but no text of it"):
        list(read_candidates(f"{collection_name}-fewer"))


def test_documents_of_ir_datasets_are_read_as_json_lines(collection_name: str) -> None:
    source = next(open_paths(collection_name))
    assert source.stream.readline() == b'{"doc_id": "a", "title": "Foxes", "text": "a red fox"}\n'


def test_a_missing_part_of_an_ir_datasets_collection_is_named(collection_name: str) -> None:
    with pytest.raises(LoaderError, match="has no judgments"):
        read_qrels(f"{collection_name}-texts")
    with pytest.raises(LoaderError, match="has no collection nowhere"):
        read_qrels("ir_datasets:nowhere")


def test_documents_of_ir_datasets_are_indexed_and_a_load_is_resumed(collection_name: str, tmp_path: Path) -> None:
    from osrerank import connect
    from osrerank_loaders.collections.registry import LOADERS
    from osrerank_loaders.load.job import load

    with connect(f"embedded:{tmp_path}") as client:
        assert load(client, "pages", LOADERS["jsonl"], [collection_name]).indexed == 2
        assert load(client, "pages", LOADERS["jsonl"], [collection_name]).resumed_from == 2
        assert client.search("fox", index="pages")["hits"]["hits"][0]["_source"] == {
            "title": "Foxes",
            "text": "a red fox",
        }
