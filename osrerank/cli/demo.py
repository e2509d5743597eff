"""``osrerank demo``: index, search and rerank a sample, in about a minute."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import click

from osrerank._optional import require
from osrerank.cli.options import client_of, wants_json
from osrerank.client import Client
from osrerank.errors import OsrerankError
from osrerank.evaluation.basic import ndcg, reciprocal_rank
from osrerank.formats.lines import numbered_objects
from osrerank.formats.topics import read_queries
from osrerank.formats.trec import read_qrels
from osrerank.types import Qrels, Query

INDEX = "osrerank-demo"
DEPTH = 30
SHOWN = 5
MAPPING = {
    "settings": {"number_of_shards": 1, "number_of_replicas": 0},
    "mappings": {
        "properties": {
            "title": {"type": "text", "analyzer": "english"},
            "text": {"type": "text", "analyzer": "english"},
        }
    },
}


@dataclass(frozen=True, slots=True)
class Sample:
    """Documents, queries and judgments of the demo."""

    documents: tuple[dict[str, Any], ...]
    queries: dict[str, str]
    relevant: Mapping[str, Mapping[str, int]]

    @classmethod
    def load(cls) -> "Sample":
        """Read the sample that ships in the package."""
        folder = Path(str(files("osrerank") / "data" / "squad"))
        documents = tuple(document for _line, document in numbered_objects(folder / "corpus.jsonl.gz"))
        queries = {query.query_id: query.text for query in read_queries(folder / "queries.tsv")}
        return cls(documents, queries, read_qrels(folder / "qrels.txt").judgments)


@dataclass(frozen=True, slots=True)
class Answer:
    """Both orders of one query, with the relevant documents."""

    query: str
    relevance: Mapping[str, int]
    first_pass: list[dict[str, Any]]
    reranked: list[dict[str, Any]]
    took_ms: tuple[int, int]

    def gain(self) -> float:
        """Return how much reranking raised the reciprocal rank."""
        return self.measure(reciprocal_rank)[1] - self.measure(reciprocal_rank)[0]

    def measure(self, function: Any) -> tuple[float, float]:
        """Return a measure of the first pass and of the reranked order."""
        before, after = ([hit["_id"] for hit in hits] for hits in (self.first_pass, self.reranked))
        return function(before, self.relevance), function(after, self.relevance)


@click.command()
@click.option("--questions", default=100, show_default=True, type=click.IntRange(3, 100), help="Questions asked.")
@click.option("--ui", is_flag=True, help="Show the sample on the comparison page instead of asking.")
@click.option("--port", default=8088, show_default=True, type=click.IntRange(1, 65535), help="With --ui: its port.")
@click.pass_context
def demo(context: click.Context, /, questions: int, port: int, *, ui: bool) -> None:
    """Index the bundled sample, search it with and without reranking, and compare.

    The sample is SQuAD's 2,067 development paragraphs with 100 questions. It stays in the index osrerank-demo, for
    `osrerank search "..." --index osrerank-demo`.

    With --ui, http://127.0.0.1:PORT/ui shows both orders of every question, with the relevant paragraph marked.
    """
    sample = Sample.load()
    client = client_of(context)
    try:
        index_sample(client, sample)
        answers = [] if ui else list(_ask(client, sample, questions))
    finally:
        client.close()
    if ui:
        _show_page(context, sample, port)
    elif wants_json(context):
        click.echo(json.dumps(_figures(answers)))
    else:
        _show(answers)


def _show_page(context: click.Context, sample: Sample, port: int) -> None:
    require("fastapi", extra="server")
    require("uvicorn", extra="server")
    from osrerank.cli.serve import serve_page  # noqa: PLC0415 - its twin command
    from osrerank.server.page.judgments import Judgments  # noqa: PLC0415 - brings pydantic

    queries = tuple(Query(query_id, text) for query_id, text in sample.queries.items())
    serve_page(context, (INDEX,), Judgments(queries, Qrels(sample.relevant)), host="127.0.0.1", port=port)


def index_sample(client: Client, sample: Sample) -> None:
    """Index the sample, unless the index exists."""
    if client.indices.exists(index=INDEX):
        if client.count(index=INDEX)["count"] == len(sample.documents):
            return
        client.indices.delete(index=INDEX)
    client.indices.create(index=INDEX, body=MAPPING)
    from opensearchpy.helpers import bulk  # noqa: PLC0415 - costs start-up time elsewhere

    actions = (
        {"_index": INDEX, "_id": doc["id"], "title": doc["title"], "text": doc["text"]} for doc in sample.documents
    )
    bulk(client, actions, refresh=True)
    count = client.count(index=INDEX)["count"]
    if count != len(sample.documents):
        raise OsrerankError(f"the index {INDEX} has {count} documents after loading {len(sample.documents)}")


def _ask(client: Client, sample: Sample, questions: int) -> Iterator[Answer]:
    from rich.console import Console  # noqa: PLC0415 - only when the command runs
    from rich.progress import track  # noqa: PLC0415 - only when the command runs

    client.warm_up()
    chosen = list(sample.queries.items())[:questions]
    console = Console(stderr=True)
    for query_id, text in track(chosen, "Searching", console=console, disable=not console.is_terminal):
        plain = client.search(text, index=INDEX, size=DEPTH)
        better = client.search(text, index=INDEX, size=DEPTH, rerank={"depth": DEPTH, "on_failure": "raise"})
        yield Answer(
            text,
            sample.relevant[query_id],
            plain["hits"]["hits"],
            better["hits"]["hits"],
            (plain["took"], better["took"]),
        )


def _figures(answers: list[Answer]) -> dict[str, Any]:
    figures: dict[str, Any] = {"queries": len(answers), "depth": DEPTH}
    for place, name in enumerate(("bm25", "reranked")):
        figures[name] = {
            "nDCG@10": sum(answer.measure(ndcg)[place] for answer in answers) / len(answers),
            "RR@10": sum(answer.measure(reciprocal_rank)[place] for answer in answers) / len(answers),
            "median_ms": sorted(answer.took_ms[place] for answer in answers)[len(answers) // 2],
        }
    return figures


def _show(answers: list[Answer]) -> None:
    from rich.console import Console  # noqa: PLC0415 - only when the command runs
    from rich.table import Table  # noqa: PLC0415 - only when the command runs

    console = Console(width=max(Console().width, 100))
    by_gain = sorted(answers, key=Answer.gain)
    for heading, answer in (
        ("Gained most", by_gain[-1]),
        ("Gained second most", by_gain[-2]),
        ("Lost most, or gained least", by_gain[0]),
    ):
        console.print()
        console.print(_side_by_side(heading, answer))
    figures = _figures(answers)
    table = Table(title=f"{figures['queries']} questions, top {DEPTH} of BM25 reranked", title_justify="left")
    for column in ("", "nDCG@10", "RR@10", "median ms"):
        table.add_column(column, justify="left" if not column else "right")
    for name, label in (("bm25", "BM25"), ("reranked", "BM25, then BERT")):
        row = figures[name]
        table.add_row(label, f"{row['nDCG@10']:.4f}", f"{row['RR@10']:.4f}", str(row["median_ms"]))
    console.print()
    console.print(table)


def _side_by_side(heading: str, answer: Answer) -> Any:
    from rich.markup import escape  # noqa: PLC0415 - only when the command runs
    from rich.table import Table  # noqa: PLC0415 - only when the command runs

    table = Table(title=f"{heading}: {escape(answer.query)}", title_justify="left", expand=True)
    table.add_column("BM25", ratio=1)
    table.add_column("BM25, then BERT", ratio=1)
    for left, right in zip(answer.first_pass[:SHOWN], answer.reranked[:SHOWN], strict=False):
        table.add_row(*(_cell(hit, answer.relevance) for hit in (left, right)))
    return table


def _cell(hit: dict[str, Any], relevance: Mapping[str, int]) -> str:
    from rich.markup import escape  # noqa: PLC0415 - only when the command runs

    before = f" (was {hit['_rerank']['first_pass']['rank']})" if "_rerank" in hit else ""
    text = escape(f"{hit['_id']}{before}: {hit['_source']['text'][:64]}…")
    return f"[bold green]✓ {text}[/]" if hit["_id"] in relevance else f"  {text}"
