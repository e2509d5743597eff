"""``osrerank tune``: learn by cross-validation how much the first pass and each document's best sentences count.

As in the paper on Birch, the score of a document is ``a * first_pass + (1 - a) * (s1 + w2 * s2 + w3 * s3)``. s1 to s3
are the scores of its three best sentences, and a, w2 and w3 are learned.
"""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from osrerank.cli.path_types import FILE, OUTPUT_FILE

if TYPE_CHECKING:
    from osrerank.evaluation.tune import Fold, SentenceScores, Weights

GRID_STEPS = 10
"""The weights 0, 1/10, 2/10, ... are tried."""


@click.command()
@click.argument("qrels", type=FILE)
@click.argument("run", type=FILE)
@click.option(
    "--output",
    "-o",
    required=True,
    type=OUTPUT_FILE,
    help="TREC run to write. Each query is ranked with weights that were learned without it.",
)
@click.option("--folds", type=FILE, help="Folds in JSON: lists of query ids, or Capreolus' format.")
@click.option(
    "--k",
    default=5,
    show_default=True,
    type=click.IntRange(2),
    help="Number of folds to create, without --folds.",
)
@click.option(
    "--sentences",
    default=3,
    show_default=True,
    type=click.IntRange(1, 3),
    help="Number of a document's best sentences that are used.",
)
@click.option(
    "--scores",
    default="logit",
    show_default=True,
    type=click.Choice(["logit", "probability"]),
    help="Sentence scores to sum: logits, as in Birch's code, or probabilities, as in the paper.",
)
@click.option(
    "--released-grid",
    is_flag=True,
    help="Try 0 to .9 for a and the sentence weights, as Birch's released code does, instead of 0 to 1.",
)
@click.option("--plot", type=OUTPUT_FILE, help="Plot AP against a, the first pass's weight, to a .svg, .png or .pdf.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
@click.pass_obj
def tune(global_options: dict[str, Any], /, **options: Any) -> None:
    """Learn the weights of sentences and first pass by cross-validation (Birch), from the scores of a run.

    \b
    osrerank run --queries topics.tsv --index news --output birch.run --depth 1000 --sentences a=0.5
    osrerank tune qrels.txt birch.run.jsonl --folds folds.json --output tuned.run --plot ap.svg

    RUN is the side file of a run that was reranked by sentences, with any weights. Each fold gets the weights
    with the best AP on the other folds. OUTPUT.weights.json contains the weights of all folds.
    """
    from osrerank.evaluation.side_file import read_records
    from osrerank.evaluation.tune import build_held_out_run, read_sentence_scores
    from osrerank.formats.files import write_atomically
    from osrerank.formats.trec import write_run

    sentence_scores = read_sentence_scores(read_records(options["run"]), kind=options["scores"])
    folds = _learn_weights(sentence_scores, options)
    output = options["output"]
    write_run(output, build_held_out_run(sentence_scores, folds, output.stem))
    summary = json.dumps(_summary(folds), indent=2)
    write_atomically(output.with_name(f"{output.name}.weights.json"), [f"{summary}\n"])
    if options["as_json"] or global_options["as_json"]:
        click.echo(summary)
    else:
        _print_folds(folds)


def _learn_weights(sentence_scores: "Sequence[SentenceScores]", options: dict[str, Any]) -> "list[Fold[Weights]]":
    """Return the best weights for each fold. If ``--plot`` is set, also write the plot."""
    from osrerank.errors import EvaluationError
    from osrerank.evaluation.folds import read_folds, split_into_blocks
    from osrerank.evaluation.tune import build_grid, compute_average_precisions, cross_validate, find_max_ap_by_a
    from osrerank.formats.trec import read_qrels

    n_values = GRID_STEPS if options["released_grid"] else GRID_STEPS + 1  # the released grid does not contain 1.0
    weight_settings = build_grid(options["sentences"], tuple(step / GRID_STEPS for step in range(n_values)))
    ap_by_query = compute_average_precisions(sentence_scores, read_qrels(options["qrels"]), weight_settings)
    if not options["folds"] and len(ap_by_query) < options["k"]:
        reason = f"{len(ap_by_query)} judged queries are too few for {options['k']} folds; set a lower --k"
        raise EvaluationError(reason)
    folds = read_folds(options["folds"]) if options["folds"] else split_into_blocks(ap_by_query, options["k"])
    learned_folds = cross_validate(ap_by_query, folds, weight_settings)
    if options["plot"]:
        from osrerank.evaluation.plots import plot_ap_by_a

        counts = range(1, options["sentences"] + 1)  # of sentences; the paper on Birch calls these models 1S, 2S and 3S
        curves = {f"{count}S": find_max_ap_by_a(ap_by_query, weight_settings, count) for count in counts}
        plot_ap_by_a(options["plot"], curves)
    return learned_folds


def _summary(folds: "Sequence[Fold[Weights]]") -> dict[str, Any]:
    """Return the weights and AP of each fold as JSON values, and the AP over all queries."""
    n_queries = sum(len(fold.held_out_ids) for fold in folds)
    return {
        "AP": sum(fold.held_out_mean * len(fold.held_out_ids) for fold in folds) / n_queries,
        "queries": n_queries,
        "folds": [
            {
                "a": fold.setting.a,
                "weights": list(fold.setting.sentence_weights),
                "AP_training": fold.training_mean,
                "AP_held_out": fold.held_out_mean,
                "held_out": list(fold.held_out_ids),
            }
            for fold in folds
        ],
    }


def _print_folds(folds: "Sequence[Fold[Weights]]") -> None:
    from osrerank.cli.tables import console, table

    rows = []
    for number, fold in enumerate(folds, start=1):
        _w1, w2, w3 = fold.setting.sentence_weights  # w1 is always 1, and weights of unused sentences are 0
        weights = [f"{weight:g}" for weight in (fold.setting.a, w2, w3)]
        means = [f"{fold.training_mean:.4f}", f"{fold.held_out_mean:.4f}"]
        rows.append([str(number), *weights, *means, str(len(fold.held_out_ids))])
    console().print(table(["fold", "a", "w2", "w3", "AP training", "AP held out", "queries"], rows))
    click.echo(f"AP {_summary(folds)['AP']:.4f} over all held-out queries")
