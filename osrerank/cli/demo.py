"""``osrerank demo``: index, search and rerank a sample, in about a minute."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib.resources import files
from itertools import islice
from pathlib import Path
from statistics import median_high
from typing import Any, cast

import click

from osrerank._optional import require
from osrerank.cli.options import open_client, wants_json
from osrerank.client import Client
from osrerank.errors import ModelLoadError, OsrerankError
from osrerank.evaluation.basic import ndcg, reciprocal_rank
from osrerank.formats.lines import numbered_objects
from osrerank.formats.topics import read_queries
from osrerank.formats.trec import read_qrels
from osrerank.options.rerank import AUTO_PIPELINE, NO_STAGES, PIPELINES, WITH_DUO
from osrerank.search.plan import RerankArgument
from osrerank.settings import Settings
from osrerank.types import Qrels, Query

Measure = Callable[[Sequence[str], Mapping[str, int]], float]
INDEX = "osrerank-demo"
DEPTH, DUO_DEPTH = 30, 10
CROSS_ENCODER = "osrerank/monobert-l6"
"""The model of pipelines with the stage `mono`, if the user names none."""
SHOWN = 5
LABELS = {
    "bm25": "BM25",
    "first_search": "reranked, first search",
    "known_texts": "reranked, texts known",
}
NOTE = (
    "A search encodes texts without vectors, and stores their vectors for all later queries.\n"
    "`osrerank vectors build` does this beforehand."
)
KNOWN_BEFORE = "An earlier run stored the vectors of these texts, so the first search encoded none."
MAPPING = {
    "settings": {"number_of_shards": 1, "number_of_replicas": 0},
    "mappings": {
        "properties": {
            "title": {"type": "text", "analyzer": "english", "fields": {"keyword": {"type": "keyword"}}},
            "text": {"type": "text", "analyzer": "english"},
        }
    },
}


@dataclass(frozen=True, slots=True)
class Sample:
    """The documents, queries and judgments of the demo."""

    documents: tuple[dict[str, Any], ...]
    queries: dict[str, str]
    relevant: Mapping[str, Mapping[str, int]]

    @classmethod
    def load(cls) -> "Sample":
        """Read the sample from the package."""
        folder = Path(str(files("osrerank") / "data" / "squad"))
        documents = tuple(document for _line, document in numbered_objects(folder / "corpus.jsonl.gz"))
        queries = {query.query_id: query.text for query in read_queries(folder / "queries.tsv")}
        return cls(documents, queries, read_qrels(folder / "qrels.txt").judgments)


@dataclass(frozen=True, slots=True)
class DemoRow:
    """A row of the demo's table: the responses to all questions, searched in one way.

    Attributes:
        name: the row's name in JSON; `LABELS` has its name in the table.
        responses: the responses, one per question, in order.
    """

    name: str
    responses: tuple[dict[str, Any], ...]

    def mean(self, measure: Measure, relevance: Sequence[Mapping[str, int]]) -> float:
        """Return the mean of a measure over the questions."""
        values = [measure(_ids(response), judged) for response, judged in zip(self.responses, relevance, strict=True)]
        return sum(values) / len(values)

    def median_ms(self) -> int:
        """Return the median time of a search, in milliseconds."""
        return int(median_high(response["took"] for response in self.responses))

    def encoded(self) -> int | None:
        """Return the median number of texts that a search encoded; None if the model has no document vectors."""
        stages = [stage for response in self.responses for stage in response.get("rerank", {}).get("stages", ())]
        counts = [stage["encoded"] for stage in stages if "encoded" in stage]
        return int(median_high(counts)) if counts else None


@click.command()
@click.option(
    "--questions", default=100, show_default=True, type=click.IntRange(3, 100), help="How many questions to search for."
)
@click.option(
    "--pipeline",
    type=click.Choice([name for name in PIPELINES if name != NO_STAGES]),
    default=AUTO_PIPELINE,
    show_default=True,
    help="Stages of the reranking.",
)
@click.option("--ui", is_flag=True, help="Show the questions on the comparison page instead.")
@click.option(
    "--port", default=8088, show_default=True, type=click.IntRange(1, 65535), help="With --ui: port of the page."
)
@click.pass_context
def demo(context: click.Context, /, questions: int, pipeline: str, port: int, *, ui: bool) -> None:
    """Index the bundled sample, search it with and without reranking, and compare.

    The sample is SQuAD's 2,067 development paragraphs with 100 questions. It stays in the index osrerank-demo, for
    `osrerank search "..." --index osrerank-demo`. Each question is searched with BM25, then with reranking. If the
    pipeline uses vectors, a third search shows how fast reranking is once the second has stored the vectors.

    Pipelines with mono use osrerank/monobert-l6 if neither --model nor the settings name a model; those with duo need
    a --duo-model.

    With --ui, http://127.0.0.1:PORT/ui shows both orders of every question, with the relevant paragraph marked.
    """
    sample = Sample.load()
    context.obj = context.obj | _models(context.obj, pipeline)
    with closing(open_client(context)) as client:
        index_sample(client, sample)
    if ui:
        _show_page(context, sample, port)
        return
    questions_by_id = dict(islice(sample.queries.items(), questions))
    rows = _search(context, questions_by_id, pipeline)
    relevance = [sample.relevant[query_id] for query_id in questions_by_id]
    if wants_json(context):
        click.echo(json.dumps(_figures(rows, relevance)))
    else:
        _show(rows, list(questions_by_id.values()), relevance)


def _show_page(context: click.Context, sample: Sample, port: int) -> None:
    require("fastapi", extra="server")
    require("uvicorn", extra="server")
    from osrerank.cli.serve import serve_page
    from osrerank.server.page.judgments import Judgments

    queries = tuple(Query(query_id, text) for query_id, text in sample.queries.items())
    serve_page(context, (INDEX,), Judgments(queries, Qrels(sample.relevant)), host="127.0.0.1", port=port)


def index_sample(client: Client, sample: Sample) -> None:
    """Index the sample, unless the index has all of it already."""
    if client.indices.exists(index=INDEX):
        if client.count(index=INDEX)["count"] == len(sample.documents):
            return
        client.indices.delete(index=INDEX)
    client.indices.create(index=INDEX, body=MAPPING)
    from opensearchpy.helpers import bulk

    actions = (
        {"_index": INDEX, "_id": doc["id"], "title": doc["title"], "text": doc["text"]} for doc in sample.documents
    )
    bulk(client, actions, refresh=True)
    count = client.count(index=INDEX)["count"]
    if count != len(sample.documents):
        raise OsrerankError(f"the index {INDEX} has {count} documents after loading {len(sample.documents)}")


def _models(named: Mapping[str, Any], pipeline: str) -> dict[str, str]:
    """Return the setting of the default model, if the pipeline has the stage `mono` and the user names no model.

    Raises:
        ModelLoadError: the pipeline compares pairs, and the user names no duo model.
    """
    settings = Settings.load(**{name: named[name] for name in ("model", "duo_model")})
    if pipeline in WITH_DUO and not settings.duo_model:
        from osrerank.scoring.registry import NO_DUO_MODEL

        raise ModelLoadError(f"{NO_DUO_MODEL}; then name it with --duo-model")
    is_named = "model" in settings.model_fields_set
    return {"model": CROSS_ENCODER} if "mono" in pipeline and not is_named else {}


def _search(context: click.Context, questions: Mapping[str, str], pipeline: str) -> list[DemoRow]:
    """Search with BM25, with reranking and, if that stored document vectors, with reranking once more."""
    bm25 = DemoRow("bm25", _responses(context, questions, NO_STAGES))
    first = DemoRow("first_search", _responses(context, questions, pipeline))
    if first.encoded() is None or Settings.load().vectors == "off":
        return [bm25, first]
    return [bm25, first, DemoRow("known_texts", _responses(context, questions, pipeline))]


def _responses(context: click.Context, questions: Mapping[str, str], pipeline: str) -> tuple[dict[str, Any], ...]:
    """Search with a new client, which has no cache in memory; vectors on disk are used."""
    from rich.console import Console
    from rich.progress import track

    rerank = pipeline != NO_STAGES
    options: dict[str, Any] = {"pipeline": pipeline, "depth": DEPTH, "on_failure": "raise"}
    if pipeline in WITH_DUO:
        options["duo_depth"] = DUO_DEPTH
    rerank_argument = cast("RerankArgument", options if rerank else False)
    console = Console(stderr=True)
    with closing(open_client(context, warm=rerank)) as client:
        texts = track(questions.values(), "Searching", console=console, disable=not console.is_terminal)
        return tuple(client.search(text, index=INDEX, size=DEPTH, rerank=rerank_argument) for text in texts)


def _figures(rows: Sequence[DemoRow], relevance: Sequence[Mapping[str, int]]) -> dict[str, Any]:
    figures: dict[str, Any] = {"queries": len(relevance), "depth": DEPTH}
    for row in rows:
        measures = {"nDCG@10": row.mean(ndcg, relevance), "RR@10": row.mean(reciprocal_rank, relevance)}
        figures[row.name] = {**measures, "median_ms": row.median_ms(), "encoded": row.encoded()}
    return figures


def _show(rows: Sequence[DemoRow], questions: Sequence[str], relevance: Sequence[Mapping[str, int]]) -> None:
    from rich.console import Console

    console = Console(width=max(Console().width, 100))
    first_pass, reranked = rows[0].responses, rows[-1].responses
    pairs = list(zip(first_pass, reranked, relevance, strict=True))
    by_gain = sorted(range(len(pairs)), key=lambda index: _gain(*pairs[index]))
    headings = {by_gain[-1]: "Gained most", by_gain[-2]: "Gained second most", by_gain[0]: "Lost most, or gained least"}
    for index, heading in headings.items():
        console.print()
        console.print(_side_by_side(f"{heading}: {questions[index]}", *pairs[index]))
    console.print()
    console.print(summary(_figures(rows, relevance)))
    if (encoded := rows[1].encoded()) is not None:
        console.print(NOTE if encoded else KNOWN_BEFORE, highlight=False)


def summary(figures: Mapping[str, Any]) -> Any:
    """Return the demo's last table, from the figures that ``--json`` prints."""
    from rich.table import Table

    title = f"{figures['queries']} questions, top {figures['depth']} of BM25 reranked"
    table = Table(title=title, title_justify="left")
    for column in ("", "nDCG@10", "RR@10", "median ms", "texts encoded"):
        table.add_column(column, justify="right" if column else "left")
    for name in (name for name in LABELS if name in figures):
        row = figures[name]
        encoded = "" if row["encoded"] is None else str(row["encoded"])
        table.add_row(LABELS[name], f"{row['nDCG@10']:.3f}", f"{row['RR@10']:.3f}", f"{row['median_ms']:,}", encoded)
    return table


def _ids(response: Mapping[str, Any]) -> list[str]:
    return [hit["_id"] for hit in response["hits"]["hits"]]


def _gain(before: Mapping[str, Any], after: Mapping[str, Any], relevance: Mapping[str, int]) -> float:
    """Return by how much reranking raised the reciprocal rank."""
    return reciprocal_rank(_ids(after), relevance) - reciprocal_rank(_ids(before), relevance)


def _side_by_side(title: str, before: Mapping[str, Any], after: Mapping[str, Any], relevance: Mapping[str, int]) -> Any:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title), title_justify="left", expand=True)
    table.add_column("BM25", ratio=1)
    table.add_column("reranked", ratio=1)
    for before_hit, after_hit in islice(zip(before["hits"]["hits"], after["hits"]["hits"], strict=False), SHOWN):
        table.add_row(*(_cell(hit, relevance) for hit in (before_hit, after_hit)))
    return table


def _cell(hit: dict[str, Any], relevance: Mapping[str, int]) -> str:
    from rich.markup import escape

    before = f" (was {hit['_rerank']['first_pass']['rank']})" if "_rerank" in hit else ""
    text = escape(f"{hit['_id']}{before}: {hit['_source']['text'][:64]}…")
    return f"[bold green]✓ {text}[/]" if hit["_id"] in relevance else f"  {text}"
