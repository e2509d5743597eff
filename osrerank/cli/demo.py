"""``osrerank demo``: index a bundled sample of SQuAD, and compare searches with and without reranking."""

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
from osrerank.formats.lines import read_numbered_objects
from osrerank.formats.topics import read_queries
from osrerank.formats.trec import read_qrels
from osrerank.options.rerank import AUTO_PIPELINE, NO_STAGES, PIPELINES, WITH_DUO
from osrerank.search.plan import RerankArgument
from osrerank.settings import Settings
from osrerank.types import Qrels, Query

Measure = Callable[[Sequence[str], Mapping[str, int]], float]
INDEX = "osrerank-demo"
DEPTH = 30
"""The number of BM25's hits to rerank."""
DUO_DEPTH = 10
"""The number of top hits that a duo model compares."""
CROSS_ENCODER = "osrerank/monobert-l6"
"""The demo's default model for pipelines with the stage ``mono``."""
MAX_SHOWN_HITS = 5
LABELS = {"bm25": "BM25", "first_search": "reranked, first search", "known_texts": "reranked, texts known"}
"""The label of each row of the table, by the row's name in JSON. A known text is one whose vector is stored."""
ENCODED_NOTE = (
    "A search encodes texts without vectors, and stores their vectors for all later queries.\n"
    "`osrerank vectors build` does this beforehand."
)
NOT_ENCODED_NOTE = "An earlier run stored the vectors of these texts, so the first search encoded none."
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
    """The data of the demo.

    Attributes:
        documents: the paragraphs, with ``id``, ``title`` and ``text``.
        queries: the question of each query id.
        relevant: the grade of each relevant paragraph, by query id: ``{"q1": {"p7": 1}}``.
    """

    documents: tuple[dict[str, Any], ...]
    queries: dict[str, str]
    relevant: Mapping[str, Mapping[str, int]]

    @classmethod
    def load(cls) -> "Sample":
        """Read the sample from the package."""
        folder = Path(str(files("osrerank") / "data" / "squad"))
        documents = tuple(document for _line, document in read_numbered_objects(folder / "corpus.jsonl.gz"))
        queries = {query.query_id: query.text for query in read_queries(folder / "queries.tsv")}
        return cls(documents, queries, read_qrels(folder / "qrels.txt").judgments)


@dataclass(frozen=True, slots=True)
class DemoRow:
    """The responses to all questions, searched in one way. They make a row of the table.

    Attributes:
        name: the name of the row, a key of `LABELS`.
        responses: a response for each question, in order.
    """

    name: str
    responses: tuple[dict[str, Any], ...]

    def mean(self, measure: Measure, relevance: Sequence[Mapping[str, int]]) -> float:
        """Return the mean of a measure over the questions."""
        values = [
            measure(_doc_ids(response), grades) for response, grades in zip(self.responses, relevance, strict=True)
        ]
        return sum(values) / len(values)

    def median_ms(self) -> int:
        """Return the median time of a search, in milliseconds."""
        return int(median_high(response["took"] for response in self.responses))

    def median_texts_encoded(self) -> int | None:
        """Return the median number of texts that a search encoded, or None if the pipeline uses no vectors."""
        stages = [stage for response in self.responses for stage in response.get("rerank", {}).get("stages", ())]
        counts = [stage["encoded"] for stage in stages if "encoded" in stage]
        return int(median_high(counts)) if counts else None


@click.command()
@click.option(
    "--questions",
    "n_questions",
    default=100,
    show_default=True,
    type=click.IntRange(3, 100),
    help="Number of questions.",
)
@click.option(
    "--pipeline",
    type=click.Choice([name for name in PIPELINES if name != NO_STAGES]),
    default=AUTO_PIPELINE,
    show_default=True,
    help="Stages of the reranking.",
)
@click.option("--ui", is_flag=True, help="Show the questions on the comparison page instead.")
@click.option("--port", default=8088, show_default=True, type=click.IntRange(1, 65535), help="Port of the page.")
@click.pass_context
def demo(context: click.Context, /, n_questions: int, pipeline: str, port: int, *, ui: bool) -> None:
    """Index the bundled sample, search it with and without reranking, and compare.

    The sample is SQuAD's 2,067 development paragraphs with 100 questions. It stays in the index osrerank-demo, for
    `osrerank search "..." --index osrerank-demo`. Each question is searched with BM25, then with reranking. If the
    pipeline uses vectors, all questions are searched a third time, which is faster because the vectors are now stored.

    Pipelines with mono use osrerank/monobert-l6 if no model is set. Pipelines with duo need a --duo-model.

    With --ui, http://127.0.0.1:PORT/ui shows both orders of every question, with the relevant paragraph marked.
    """
    sample = Sample.load()
    context.obj = context.obj | _choose_model(context.obj, pipeline)
    with closing(open_client(context)) as client:
        index_sample(client, sample)
    if ui:
        _serve_page(context, sample, port)
        return
    questions_by_id = dict(islice(sample.queries.items(), n_questions))
    questions = list(questions_by_id.values())
    rows = _search_all_ways(context, questions, pipeline)
    relevance = [sample.relevant[query_id] for query_id in questions_by_id]
    if wants_json(context):
        click.echo(json.dumps(_summarize(rows, relevance)))
    else:
        _print_report(rows, questions, relevance)


def _serve_page(context: click.Context, sample: Sample, port: int) -> None:
    """Serve the comparison page with all questions and judgments of the sample."""
    require("fastapi", extra="server")
    require("uvicorn", extra="server")
    from osrerank.cli.serve import serve_page
    from osrerank.server.page.judgments import Judgments

    queries = tuple(Query(query_id, text) for query_id, text in sample.queries.items())
    serve_page(context, (INDEX,), Judgments(queries, Qrels(sample.relevant)), host="127.0.0.1", port=port)


def index_sample(client: Client, sample: Sample) -> None:
    """Index the sample, unless it is already indexed."""
    if client.indices.exists(index=INDEX):
        if client.count(index=INDEX)["count"] == len(sample.documents):
            return
        client.indices.delete(index=INDEX)
    client.indices.create(index=INDEX, body=MAPPING)
    from opensearchpy.helpers import bulk

    actions = (
        {"_index": INDEX, "_id": document["id"], "title": document["title"], "text": document["text"]}
        for document in sample.documents
    )
    bulk(client, actions, refresh=True)
    count = client.count(index=INDEX)["count"]
    if count != len(sample.documents):
        message = f"the index {INDEX} has {count} documents, although {len(sample.documents)} were loaded into it"
        raise OsrerankError(f"{message}: something else writes to it; delete the index, and run the demo again")


def _choose_model(global_options: Mapping[str, Any], pipeline: str) -> dict[str, str]:
    """Return ``{"model": CROSS_ENCODER}`` if the pipeline needs one and the user has set no model, otherwise ``{}``.

    Raises:
        ModelLoadError: the pipeline needs a duo model, and the user has set none.
    """
    settings = Settings.load(**{name: global_options[name] for name in ("model", "duo_model")})
    if pipeline in WITH_DUO and not settings.duo_model:
        from osrerank.scoring.registry import NO_DUO_MODEL

        raise ModelLoadError(f"{NO_DUO_MODEL}; then set it with --duo-model")
    has_mono_stage = "mono" in pipeline.split("-")
    if has_mono_stage and "model" not in settings.model_fields_set:
        return {"model": CROSS_ENCODER}
    return {}


def _search_all_ways(context: click.Context, questions: Sequence[str], pipeline: str) -> list[DemoRow]:
    """Search with BM25, then with reranking, and once more if the first reranking stored document vectors."""
    first_pass = DemoRow("bm25", _search_all(context, questions, NO_STAGES))
    reranked = DemoRow("first_search", _search_all(context, questions, pipeline))
    uses_vectors = reranked.median_texts_encoded() is not None
    if not uses_vectors or Settings.load().vectors == "off":
        return [first_pass, reranked]
    return [first_pass, reranked, DemoRow("known_texts", _search_all(context, questions, pipeline))]


def _search_all(context: click.Context, questions: Sequence[str], pipeline: str) -> tuple[dict[str, Any], ...]:
    """Search for all questions with a new client. Its cache in memory is empty, but it uses stored vectors."""
    from osrerank.cli.tables import track

    reranks = pipeline != NO_STAGES
    options: dict[str, Any] = {"pipeline": pipeline, "depth": DEPTH, "on_failure": "raise"}
    if pipeline in WITH_DUO:
        options["duo_depth"] = DUO_DEPTH
    rerank_argument = cast("RerankArgument", options if reranks else False)
    with closing(open_client(context, warm=reranks)) as client:
        return tuple(client.search(text, index=INDEX, size=DEPTH, rerank=rerank_argument) for text in track(questions))


def _summarize(rows: Sequence[DemoRow], relevance: Sequence[Mapping[str, int]]) -> dict[str, Any]:
    """Return the report that ``--json`` prints, such as ``{"queries": 100, "depth": 30, "bm25": {"nDCG@10": ...}}``."""
    summary: dict[str, Any] = {"queries": len(relevance), "depth": DEPTH}
    for row in rows:
        summary[row.name] = {
            "nDCG@10": row.mean(ndcg, relevance),
            "RR@10": row.mean(reciprocal_rank, relevance),
            "median_ms": row.median_ms(),
            "encoded": row.median_texts_encoded(),
        }
    return summary


def _print_report(rows: Sequence[DemoRow], questions: Sequence[str], relevance: Sequence[Mapping[str, int]]) -> None:
    from rich.console import Console

    console = Console(width=max(Console().width, 100))
    # for each question: BM25's response, the last reranked response, and the relevance
    comparisons = list(zip(rows[0].responses, rows[-1].responses, relevance, strict=True))
    gains = [_gain(*comparison) for comparison in comparisons]
    indices_by_gain = sorted(range(len(gains)), key=lambda index: gains[index])
    headings = {
        indices_by_gain[-1]: "Gained most",
        indices_by_gain[-2]: "Gained second most",
        indices_by_gain[0]: "Lost most, or gained least",
    }
    for index, heading in headings.items():
        console.print()
        console.print(_side_by_side(f"{heading}: {questions[index]}", *comparisons[index]))
    console.print()
    console.print(summary_table(_summarize(rows, relevance)))
    _first_pass, first_reranked, *_ = rows
    encoded = first_reranked.median_texts_encoded()
    if encoded is not None:
        console.print(ENCODED_NOTE if encoded else NOT_ENCODED_NOTE, highlight=False)


def summary_table(summary: Mapping[str, Any]) -> Any:
    """Return the table at the end of the demo, with a row for each way of searching in the report of `_summarize`."""
    from rich.table import Table

    title = f"{summary['queries']} questions, top {summary['depth']} of BM25 reranked"
    table = Table(title=title, title_justify="left")
    for column in ("", "nDCG@10", "RR@10", "median ms", "texts encoded"):
        table.add_column(column, justify="right" if column else "left")
    for name, label in LABELS.items():
        if name not in summary:
            continue
        row = summary[name]
        encoded = "" if row["encoded"] is None else str(row["encoded"])
        table.add_row(label, f"{row['nDCG@10']:.3f}", f"{row['RR@10']:.3f}", f"{row['median_ms']:,}", encoded)
    return table


def _doc_ids(response: Mapping[str, Any]) -> list[str]:
    return [hit["_id"] for hit in response["hits"]["hits"]]


def _gain(before: Mapping[str, Any], after: Mapping[str, Any], relevance: Mapping[str, int]) -> float:
    """Return by how much the reciprocal rank of a question rises from one response to another."""
    return reciprocal_rank(_doc_ids(after), relevance) - reciprocal_rank(_doc_ids(before), relevance)


def _side_by_side(title: str, before: Mapping[str, Any], after: Mapping[str, Any], relevance: Mapping[str, int]) -> Any:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title), title_justify="left", expand=True)
    table.add_column("BM25", ratio=1)
    table.add_column("reranked", ratio=1)
    hits = zip(before["hits"]["hits"], after["hits"]["hits"], strict=False)
    for before_hit, after_hit in islice(hits, MAX_SHOWN_HITS):
        table.add_row(_format_hit(before_hit, relevance), _format_hit(after_hit, relevance))
    return table


def _format_hit(hit: dict[str, Any], relevance: Mapping[str, int]) -> str:
    from rich.markup import escape

    former_rank = f" (was {hit['_rerank']['first_pass']['rank']})" if "_rerank" in hit else ""
    text = escape(f"{hit['_id']}{former_rank}: {hit['_source']['text'][:64]}…")
    return f"[bold green]✓ {text}[/]" if hit["_id"] in relevance else f"  {text}"
