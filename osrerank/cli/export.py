"""``osrerank export``: turn a Hugging Face checkpoint into an osrerank model directory."""

from pathlib import Path

import click

from osrerank._removed import instead_of
from osrerank.cli.options import CHECKPOINT
from osrerank.settings import Settings

FOLDER = click.Path(path_type=Path, file_okay=False)
FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


def _kind(value: str | None) -> str | None:
    if value not in (None, "duo"):
        fix = instead_of(f"osrerank export --kind {value}") or "leave it out for what SOURCE is"
        raise click.BadParameter(f"{value!r} is not 'duo'; {fix}.")
    return value


@click.command()
@click.argument("source", type=CHECKPOINT)
@click.argument("output", type=FOLDER)
@click.option("--name", default="", help="Name in the model's card; the output folder's by default.")
@click.option(
    "--kind",
    metavar="[duo]",
    callback=lambda _context, _option, value: _kind(value),
    help="Make a duo model, which compares two documents, of a cross-encoder.  [default: what SOURCE is]",
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
    help="duo: the second document's segment, where the checkpoint has two; zeros as the released duoBERT.",
)
@click.option(
    "--pooling",
    type=click.Choice(["cls", "mean", "max", "weightedmean", "lasttoken"]),
    help="bi-encoder: how token states become a text's vector.  [default: its files']",
)
@click.option("--query-prefix", help="bi-encoder: prefix of every query.  [default: its files', else none]")
@click.option("--document-prefix", help="bi-encoder: prefix of every document.  [default: likewise]")
@click.option(
    "--dimensions",
    type=click.IntRange(min=1),
    help="bi-encoder: keep only the first numbers of each vector (Matryoshka models).  [default: its files', or all]",
)
@click.option(
    "--token-pooling",
    "pool_factor",
    type=click.FloatRange(min=1),
    help="late interaction: merge a document's token vectors, about this many into one.  [default: its files', else 1]",
)
@click.option(
    "--precision",
    type=click.Choice(["fp32", "int8"]),
    help="Precision of the graph.  [default: int8 of a bi-encoder, else fp32]",
)
@click.option(
    "--first-pass-weight",
    type=click.FloatRange(min=0),
    help="For the card: logits that the best first-pass score adds in a blend.  [default: SOURCE's, or chosen]",
)
@click.option("--keep-weights", is_flag=True, help="Also copy the safetensors, for the torch backend.")
@click.option(
    "--self-check/--no-self-check",
    default=True,
    show_default=True,
    help="Refuse a foreign checkpoint that ranks like an untrained one.",
)
@click.option("--candidates", type=FILE, help="A development set, JSON lines as `osrerank rerank` reads; with --qrels.")
@click.option(
    "--qrels", type=FILE, help="Its judgments (TREC): probabilities and weights of the card are fitted to them."
)
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

    SOURCE is a cross-encoder, a bi-encoder that sentence-transformers saved, or a late-interaction model that
    sentence-transformers, PyLate or Stanford's code saved. It has safetensors, or PyTorch's pickled weights or a
    TensorFlow checkpoint, and tokenizer.json or vocab.txt. OUTPUT appears whole or not at all; it gets an ONNX graph,
    the tokenizer and the card osrerank.json.
    """
    from osrerank.export.export_model import ExportOptions, export_model

    if (candidates is None) != (qrels is None):
        raise click.UsageError("--candidates and --qrels go together; give both or neither")
    judged = None if candidates is None or qrels is None else (candidates, qrels)
    options["vector_model"] = click.get_current_context().obj["vector_model"] or Settings.load().vector_model
    wanted = ExportOptions(head=head or "", precision=precision or "", **options)  # type: ignore[arg-type] # click's choices are checked
    card = export_model(source, output, wanted, judged=judged, report=click.echo)
    fitted = card.calibration
    model = f"{card.kind} with the head {card.head}"
    click.echo(f"{output}: {model}, logit = {fitted.scale:.4g} * raw + {fitted.offset:.4g}")
