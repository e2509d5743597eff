"""``osrerank export``: turn a checkpoint, such as one of the Hugging Face hub, into an osrerank model directory."""

from pathlib import Path

import click

from osrerank._removed import find_replacement
from osrerank.cli.options import CHECKPOINT
from osrerank.cli.path_types import FILE, FOLDER
from osrerank.settings import Settings


def _validate_kind(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    """Refuse kinds other than duo. The error for a removed kind says what replaces it."""
    if value not in (None, "duo"):
        fix = find_replacement(f"osrerank export --kind {value}") or "leave --kind out to keep the kind of SOURCE"
        raise click.BadParameter(f"{value!r} is not 'duo'; {fix}.")
    return value


@click.command()
@click.argument("source", type=CHECKPOINT)
@click.argument("output", type=FOLDER)
@click.option("--name", default="", help="Name in the model card.  [default: the name of OUTPUT]")
@click.option(
    "--kind",
    metavar="[duo]",
    callback=_validate_kind,
    help="Turn a cross-encoder into a duo model, which compares two documents.  [default: the kind of SOURCE]",
)
@click.option(
    "--head",
    type=click.Choice(["logit1", "logits2", "next-sentence"]),
    help="Head of SOURCE, if its files do not say: one logit, two labels, or BERT's next-sentence head (Birch).",
)
@click.option(
    "--third-segment",
    type=click.Choice(["zeros", "copy"]),
    default="zeros",
    show_default=True,
    help="duo: segment ids of the second document if the checkpoint has two segments. Use zeros for duoBERT.",
)
@click.option(
    "--pooling",
    type=click.Choice(["cls", "mean", "max", "weightedmean", "lasttoken"]),
    help="bi-encoder: how token states become a text's vector.  [default: SOURCE's]",
)
@click.option("--query-prefix", help="bi-encoder: prefix of every query.  [default: SOURCE's, or none]")
@click.option("--document-prefix", help="bi-encoder: prefix of every document.  [default: SOURCE's, or none]")
@click.option(
    "--dimensions",
    type=click.IntRange(min=1),
    help="bi-encoder: truncate vectors to this many numbers (Matryoshka models).  [default: SOURCE's, or all]",
)
@click.option(
    "--token-pooling",
    "pool_factor",
    type=click.FloatRange(min=1),
    help="late interaction: divide the number of a document's token vectors by this.  [default: SOURCE's, or 1]",
)
@click.option(
    "--precision",
    type=click.Choice(["fp32", "int8"]),
    help="Precision of the graph.  [default: int8 for bi-encoders, fp32 for others]",
)
@click.option(
    "--first-pass-weight",
    type=click.FloatRange(min=0),
    help="Weight of the first pass in a blend: the logits that its best hit gains.  [default: SOURCE's, or fitted]",
)
@click.option("--keep-weights", is_flag=True, help="Also copy the safetensors, for the torch backend.")
@click.option(
    "--self-check/--no-self-check",
    default=True,
    show_default=True,
    help="Refuse another program's checkpoint if it ranks no better than an untrained model.",
)
@click.option("--candidates", type=FILE, help="Development set, JSON lines as for `osrerank rerank`; with --qrels.")
@click.option("--qrels", type=FILE, help="TREC judgments of --candidates, to fit the card's probabilities and weights.")
def export(
    source: Path,
    output: Path,
    candidates: Path | None,
    qrels: Path | None,
    head: str | None,
    precision: str | None,
    **options: object,
) -> None:
    """Write SOURCE, a checkpoint's directory or a hub id, as the model directory OUTPUT.

    \b
    osrerank export castorini/monobert-large-msmarco monobert
    osrerank export ./birch-msmarco birch --head next-sentence
    osrerank export ./BERT_Large_trained_on_MSMARCO monobert --precision int8
    osrerank export BAAI/bge-small-en-v1.5 bge --candidates dev.jsonl --qrels dev.qrels

    SOURCE is a cross-encoder, a bi-encoder saved by sentence-transformers, or a late-interaction model saved by
    sentence-transformers, PyLate or Stanford's code. Its weights are safetensors, PyTorch's pickles or a TensorFlow
    checkpoint, and it contains tokenizer.json or vocab.txt. OUTPUT gets an ONNX graph, the tokenizer and the model card
    osrerank.json. It appears only when it is complete.
    """
    from osrerank.export.export_model import ExportOptions, export_model

    if (candidates is None) != (qrels is None):
        raise click.UsageError("--candidates and --qrels belong together; pass both or neither")
    development_set = None if candidates is None or qrels is None else (candidates, qrels)
    # For a cross-encoder, the development set also serves to fit the weight of this bi-encoder's scores.
    options["vector_model"] = click.get_current_context().obj["vector_model"] or Settings.load().vector_model
    export_options = ExportOptions(head=head or "", precision=precision or "", **options)  # type: ignore[arg-type] # click's choices are checked
    card = export_model(source, output, export_options, development_set=development_set, report=click.echo)
    calibration = f"logit = {card.calibration.scale:.4g} * raw + {card.calibration.offset:.4g}"
    click.echo(f"{output}: {card.kind} with the head {card.head}, {calibration}")
