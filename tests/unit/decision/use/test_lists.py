"""The Search Relevance plugin's lists, and the commands that write and read them."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from osrerank.cli import cli, main
from osrerank.decision.use.clicks import ShownPage, write_clicks
from osrerank.decision.use.lists import judgment_list, query_set, read_folder, read_list
from osrerank.errors import FormatError
from osrerank.formats.trec import read_qrels
from osrerank.server.page.judgments import Judgments
from osrerank.types import Query

STORED = {
    "took": 1,
    "hits": {
        "total": {"value": 1, "relation": "eq"},
        "hits": [
            {
                "_index": ".plugins-search-relevance-judgment",
                "_id": "7",
                "_source": {
                    "id": "7",
                    "name": "clicks",
                    "status": "COMPLETED",
                    "type": "UBI_JUDGMENT",
                    "judgmentRatings": [
                        {
                            "query": "red dress",
                            "ratings": [{"docId": "B07", "rating": "1.400"}, {"docId": "B08", "rating": 0.5}],
                        },
                        {"query": "Red  dress", "ratings": [{"docId": "B09", "rating": "0.000"}]},
                        {"query": "blue jeans", "ratings": []},
                    ],
                },
            }
        ],
    },
}  # fmt: skip


def run(*arguments: str) -> Result:
    outcome = CliRunner().invoke(cli, arguments)
    assert outcome.exit_code == 0, outcome.output
    return outcome


def written(folder: Path, content: Any) -> Path:
    file = folder / "list.json"
    file.write_text(json.dumps(content))
    return file


def test_a_stored_list_becomes_grades(tmp_path: Path) -> None:
    file = written(tmp_path, STORED)
    shown = run("judgments", "import", str(file), "--output", str(tmp_path / "judged")).output
    assert shown.strip().endswith("judged: 2 queries, 3 judgments")
    assert read_qrels(tmp_path / "judged" / "qrels.txt").judgments == {"list-1": {"B07": 3, "B08": 1, "B09": 0}}
    assert (tmp_path / "judged" / "queries.tsv").read_text() == "list-1\tred dress\nlist-2\tblue jeans\n"


@pytest.mark.parametrize("queries", [[{"queryText": "tv"}, {"queryText": "led tv"}], {"tv": 3, "led tv": 1}])
def test_a_query_set_has_queries_alone(tmp_path: Path, queries: Any) -> None:
    found = read_list(written(tmp_path, {"name": "TVs", "sampling": "manual", "querySetQueries": queries}))
    assert found.queries == (Query("list-1", "tv"), Query("list-2", "led tv"))
    assert found.ratings == {}
    assert query_set(found.queries, "TVs")["querySetQueries"] == [{"queryText": "tv"}, {"queryText": "led tv"}]


def test_what_people_judged_on_the_page_becomes_a_list(tmp_path: Path) -> None:
    saved = Judgments(folder=tmp_path / "judged")
    for doc_id, relevance in (("d1", 3), ("d2", 0)):
        saved.judge("low blood pressure", doc_id, relevance)
    output = tmp_path / "list.json"
    run("judgments", "export", str(tmp_path / "judged"), "--name", "people", "--output", str(output))
    body = json.loads(output.read_text())
    ratings = [{"docId": "d1", "rating": "3.0000"}, {"docId": "d2", "rating": "0.0000"}]
    assert (body["type"], body["name"]) == ("IMPORT_JUDGMENT", "people")
    assert body["judgmentRatings"] == [{"query": "low blood pressure", "ratings": ratings}]
    assert judgment_list(read_list(output), "people") == body
    run("judgments", "export", str(tmp_path / "judged"), "--name", "q", "--output", str(output), "--queries-only")
    assert read_list(output).queries == (Query("list-1", "low blood pressure"),)


def test_judgments_are_learnt_from_a_file(tmp_path: Path) -> None:
    pages = [
        ShownPage("q", ("a", "b") if number % 2 else ("b", "a"), frozenset("a"), f"s{number}") for number in range(20)
    ]
    write_clicks(pages, tmp_path / "clicks.jsonl")
    arguments = ["judgments", "learn", str(tmp_path / "clicks.jsonl"), "--output", str(tmp_path / "judged")]
    assert "2 judgments of 1 queries from 20 pages" in run(*arguments).output
    judged = read_folder(tmp_path / "judged")
    assert judged.ratings == {"use-1": {"a": 3.0, "b": 0.0}}
    found = json.loads(run("--json", *arguments, "--model", "coec").output)
    assert (found["model"], found["moved"], found["left_out_queries"]) == ("coec", 2, 0)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"name": "x"}, "neither querySetQueries nor judgmentRatings"),
        ([], "neither querySetQueries nor judgmentRatings"),
        ({"judgmentRatings": [{"query": "q", "ratings": [{"docId": "d"}]}]}, "KeyError: 'rating'"),
        ({"judgmentRatings": [{"query": "q", "ratings": [{"docId": "d", "rating": "NaN"}]}]}, "not a finite number"),
        ({"hits": {"hits": [{"_source": {"querySetQueries": []}}] * 2}}, "has 2 lists: get one by its id"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, content: Any, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        read_list(written(tmp_path, content))


def test_an_id_that_qrels_cannot_hold_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = {"judgmentRatings": [{"query": "q", "ratings": [{"docId": "a b", "rating": 1}]}]}
    with pytest.raises(SystemExit):
        main(["judgments", "import", str(written(tmp_path, content)), "--output", str(tmp_path / "judged")])
    assert "the document id 'a b' has white space" in capsys.readouterr().err
