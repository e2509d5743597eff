"""``osrerank export``: turn a Hugging Face checkpoint into an osrerank model directory."""

from pathlib import Path
from typing import Literal

import click

from osrerank.cli.options import CHECKPOINT

FOLDER = click.Path(path_type=Path, file_okay=False)
FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


class Bias(click.ParamType[float | str]):
    """A number, or ``closed``."""

    name = "bias"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float | str:
        """Return a number or ``closed``."""
        if value == "closed":
            return "closed"
        try:
            return float(str(value))
        except ValueError:
            self.fail(f"{value} is neither a number nor 'closed'", param, ctx)


@click.command()
@click.argument("source", type=CHECKPOINT)
@click.argument("output", type=FOLDER)
@click.option("--name", default="", help="Name in the model's card; the output folder's by default.")
@click.option(
    "--kind",
    type=click.Choice(["mono", "duo"]),
    default="mono",
    show_default=True,
    help="What it judges: one document, or which of two is better.",
)
@click.option(
    "--head",
    type=click.Choice(["logit1", "logits2", "next-sentence"]),
    help="What its head is, where its files do not say: one logit, two labels, or BERT's next-sentence head (Birch).",
)
@click.option(
    "--third-segment",
    type=click.Choice(["zeros", "copy"]),
    default="zeros",
    show_default=True,
    help="duo: the second document's segment, where the checkpoint has two; zeros as the released duoBERT.",
)
@click.option(
    "--layout",
    type=click.Choice(["standard", "cross-bias"]),
    default="standard",
    show_default=True,
    help="A classifier as it is, or a pair scorer made of a bi-encoder.",
)
@click.option(
    "--query-bias",
    type=Bias(),
    default=-2.0,
    show_default=True,
    help="cross-bias: bias on the attention of the query to the document; a number or 'closed'.",
)
@click.option(
    "--document-bias",
    type=Bias(),
    default="closed",
    show_default=True,
    help="cross-bias: bias on the attention of the document to the query.",
)
@click.option(
    "--other-bias",
    type=Bias(),
    default=-4.0,
    show_default=True,
    help="cross-bias, duo: bias on the attention of one document to the other.",
)
@click.option(
    "--pool-factor",
    type=click.FloatRange(min=1),
    help="cross-bias: pieces of a document for each of its states; faster, less exact. [default: SOURCE's own]",
)
@click.option(
    "--precision", type=click.Choice(["fp32", "int8"]), default="fp32", show_default=True, help="Of the ONNX graph."
)
@click.option(
    "--activations",
    type=click.Choice(["dynamic", "static"]),
    default="dynamic",
    show_default=True,
    help="int8: compute the scale of activations for each input, or fix it now, so that short texts share passes.",
)
@click.option(
    "--first-pass-weight",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    help="For the card: logits that the best first-pass score adds in a blend.",
)
@click.option("--padded", is_flag=True, help="Make a graph that takes padded batches, for other programs; slower here.")
@click.option("--keep-weights", is_flag=True, help="Also copy the safetensors, for the torch backend.")
@click.option(
    "--self-check/--no-self-check",
    default=True,
    show_default=True,
    help="Refuse a model of others that does not put answering paragraphs first, as one that is not trained.",
)
@click.option(
    "--calibrate",
    nargs=2,
    type=FILE,
    metavar="CANDIDATES QRELS",
    help="Fit probabilities on candidates (JSON lines) with judgments (TREC).",
)
def export(
    source: Path,
    output: Path,
    calibrate: tuple[Path, Path] | None,
    activations: Literal["dynamic", "static"],
    head: str | None,
    **options: object,
) -> None:
    """Write SOURCE, a checkpoint's directory or a hub id, as the model directory OUTPUT.

    \b
    osrerank export castorini/monobert-large-msmarco monobert
    osrerank export ./birch-msmarco birch --head next-sentence
    osrerank export ./BERT_Large_trained_on_MSMARCO monobert --precision int8

    SOURCE has safetensors, PyTorch's pickled weights or a TensorFlow checkpoint, and tokenizer.json or vocab.txt.
    OUTPUT appears whole or not at all; it gets an ONNX graph, the tokenizer and the card osrerank.json.
    """
    from osrerank.export.export_model import ExportOptions, export_model  # noqa: PLC0415 - imports numpy and more
    from osrerank.export.quantise import Recipe  # noqa: PLC0415 - its neighbour

    wanted = ExportOptions(recipe=Recipe(activations=activations), head=head or "", **options)  # type: ignore[arg-type] # click's choices are checked
    card = export_model(source, output, wanted, calibrate=calibrate, report=click.echo)
    fitted = card.calibration
    model = f"{card.kind} model, {card.layout} layout, {card.head} head"
    click.echo(f"{output}: {model}, logit = {fitted.scale:.4g} * raw + {fitted.offset:.4g}")
