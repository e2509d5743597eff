"""``osrerank reproduce``: rerank published candidates, and compare the model's nDCG@10 with published values."""

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from osrerank.cli.index_texts import open_index_texts
from osrerank.cli.options import (
    INDEX,
    RANKING_OPTIONS,
    allow_partial,
    build_rerank_argument,
    open_reranker,
    search_options,
    wants_json,
)
from osrerank.cli.path_types import FILE, FOLDER, OUTPUT_FILE
from osrerank.evaluation.published import COLLECTIONS, DEPTHS, MEASURE

if TYPE_CHECKING:
    from osrerank.evaluation.reproduce import Reproduction


@click.command()
@click.argument("collection", type=click.Choice(sorted(COLLECTIONS)))
@click.argument("folder", required=False, type=FOLDER)
@click.option("--candidates", "candidate_depth", type=click.Choice([str(depth) for depth in DEPTHS]), default="100",
    show_default=True, help="Rerank BM25's top 100 or top 1,000.")  # fmt: skip
@click.option("--index", type=INDEX, help="Index with the documents of BM25.txt, instead of corpus.jsonl.")
@click.option("--against", type=FILE, multiple=True, help="Run to compare with, in addition to BM25; repeat for more.")
@click.option("--output", "-o", type=OUTPUT_FILE, help="Run to write.  [default: COLLECTION-MODEL.run]")
@allow_partial
@search_options(*RANKING_OPTIONS)
@click.pass_context
def reproduce(context: click.Context, /, **options: Any) -> None:
    """Rerank the published candidates of COLLECTION, and print nDCG@10 beside published values.

    \b
    osrerank download dl19
    osrerank reproduce dl19
    osrerank --model osrerank/minilm-l6 reproduce dl19 dl19 --against dl19-e5-small.run

    FOLDER contains the judgments and candidates; its default is the collection's name. If a file is missing, the error
    message gives its address and checksum. The candidates are rank_llm's file, or BM25.txt (a run, such as Anserini's)
    with queries.tsv and either corpus.jsonl or --index. The same command resumes an interrupted run.
    """
    from osrerank.cli.batch import run_batch
    from osrerank.cli.rerank import create_batch
    from osrerank.evaluation import reproduce as reproduction_steps
    from osrerank.formats.trec import read_run

    collection = COLLECTIONS[options["collection"]]
    candidate_depth = int(options["candidate_depth"])
    with open_index_texts(context, options["index"]) as texts:
        folder = options["folder"] or Path(collection.name)
        materials = reproduction_steps.find_materials(folder, collection, candidate_depth, texts)
    bm25, candidates = reproduction_steps.truncate_candidates(materials.candidates, candidate_depth)
    other_runs = [replace(read_run(path), name=str(path)) for path in options["against"]]
    with closing(open_reranker(context)) as reranker:
        name = reranker.settings.model
        output = options["output"] or Path(f"{collection.name}-{Path(name).name}.run")
        depth = options["depth"] or candidate_depth
        rerank_argument = build_rerank_argument({**options, "depth": depth, "do_rerank": True})
        batch = create_batch(reranker, candidates, rerank_argument)
        run_batch(batch, {"output": output, "allow_partial": options["allow_partial"]})
    model_run = replace(read_run(output), name=name)
    reproduction = reproduction_steps.compare_with_published(
        collection, candidate_depth, materials.qrels, bm25, model_run, other_runs
    )
    if wants_json(context):
        click.echo(json.dumps(reproduction.as_json(), indent=2))
    else:
        _print_report(reproduction)


def _print_report(reproduction: "Reproduction") -> None:
    from osrerank.cli.tables import console, table
    from osrerank.evaluation.significance import format_p_value

    collection = reproduction.collection
    click.echo(f"{collection.description}: BM25's top {reproduction.depth}, {reproduction.n_queries} queries")
    sources = list(dict.fromkeys(published.source for published in reproduction.published))
    rows = [(value, name, f"{value:.4f}", "here") for name, value in reproduction.values.items()]
    for published in reproduction.published:
        source_number = f"[{sources.index(published.source) + 1}]"
        rows.append((published.value, published.system, f"{published.value:.3f}", source_number))
    sorted_cells = [cells for _value, *cells in sorted(rows)]
    console().print(table(["system", MEASURE, "source"], sorted_cells))
    for number, source in enumerate(sources, start=1):
        click.echo(f"[{number}] {source}")
    published_bm25 = collection.bm25
    if not reproduction.has_published_candidates:
        click.echo(
            f"These candidates are not the published ones, on which BM25 reaches {published_bm25.value:.4f} over "
            f"{collection.n_queries} queries ({published_bm25.source}), so published values are left out."
        )
    elif not reproduction.published:
        click.echo(f"No values are published for these candidates, only for the top {min(DEPTHS)}.")
    for comparison in reproduction.comparisons:
        click.echo(
            f"{comparison.run} against {comparison.baseline}: {comparison.difference:+.4f}; {comparison.wins} better, "
            f"{comparison.ties} equal, {comparison.losses} worse; {format_p_value(comparison.p_t_holm)} "
            "(paired t-test, Holm-corrected)"
        )
