"""``osrerank adapt``: make a joined reranker of a public bi-encoder."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from osrerank.cli.options import MODEL

if TYPE_CHECKING:
    from osrerank.adapt.adapt import Adapted
    from osrerank.adapt.choose import Tried

FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
SHOWN = 12
"""Settings in the table."""


@click.command()
@click.argument("source", metavar="MODEL", type=MODEL)
@click.option("--output", "-o", required=True, type=click.Path(path_type=Path, file_okay=False), help="New directory.")
@click.option("--name", default="", help="Name in the model's card; the output folder's by default.")
@click.option("--pooling", type=click.Choice(["cls", "mean"]), help="A text's vector.  [default: what the files say]")
@click.option("--query-prefix", help="Stands before every query.  [default: what the files say, else none]")
@click.option("--document-prefix", help="Stands before every document.  [default: likewise]")
@click.option("--candidates", type=FILE, help="JSON lines to choose by, as `osrerank rerank` reads them; with --qrels.")
@click.option("--qrels", type=FILE, help="Judgments (TREC) of the candidates.")
@click.option("--layers", type=click.IntRange(0), help="Joined layers; 0 is the bi-encoder.  [default: chosen, or 1]")
@click.option("--bias", type=float, help="On the query's attention to the document.  [default: chosen, or by pooling]")
@click.option(
    "--precision", type=click.Choice(["int8", "fp32"]), default="int8", show_default=True, help="Of the graphs."
)
@click.option("--keep-weights", is_flag=True, help="Also copy the safetensors, for the torch backend and training.")
@click.pass_obj
def adapt(
    obj: dict[str, Any],
    /,
    source: Path,
    output: Path,
    candidates: Path | None,
    qrels: Path | None,
    **options: Any,
) -> None:
    """Write MODEL, a BERT bi-encoder in sentence-transformers' layout, as a joined reranker.

    \b
    osrerank adapt bge-small-en-v1.5 --output reranker
    osrerank adapt bge-small-en-v1.5 --output reranker --candidates dev.jsonl --qrels dev.qrels
    osrerank --model ./reranker search "low blood pressure" --index notes

    Queries look at documents in the last layers only; nothing is trained. With judged candidates, the number of layers,
    the bias, the share of the plain cosine, the first pass's weight and the probabilities are chosen by them.
    """
    from osrerank.adapt import adapt as library  # noqa: PLC0415 - imports numpy and more

    if (candidates is None) != (qrels is None):
        raise click.UsageError("--candidates and --qrels go together; give both or neither")
    judged = None if candidates is None or qrels is None else (candidates, qrels)
    wanted = library.AdaptOptions(**options)
    done = library.adapt(source, output, wanted, judged=judged, report=lambda line: click.echo(line, err=True))
    if obj["as_json"]:
        import json  # noqa: PLC0415 - for this option

        click.echo(json.dumps(_summary(done)))
        return
    _show(done, output)


def _summary(done: "Adapted") -> dict[str, Any]:
    card, choice = done.card, done.choice
    found: dict[str, Any] = {
        "joining": card.joining.to_json(),
        "first_pass_weight": card.first_pass_weight,
        "rows_per_candidate": done.rows,
    }
    if choice is not None:
        found["nDCG@10"] = {
            "first pass": choice.first_pass,
            "chosen": choice.chosen.mean,
            "held out": choice.held_out,
            "bi-encoder": choice.plain.mean,
        }
        found["tried"] = [{**_setting(one), "nDCG@10": one.mean} for one in choice.tried]
    return found


def _setting(one: "Tried") -> dict[str, Any]:
    joining = one.joining
    return {
        "layers": joining.layers,
        "bias": joining.bias if joining.layers else None,
        "cosine_share": joining.cosine_share,
        "first_pass_weight": one.weight,
    }


def _show(done: "Adapted", output: Path) -> None:
    joining, choice = done.card.joining, done.choice
    if choice is not None:
        click.echo(f"{len(choice.tried)} settings, the best {SHOWN}:")
        click.echo("layers  bias  share of cosine  first pass  nDCG@10")
        for one in choice.tried[:SHOWN]:
            bias = f"{one.joining.bias:g}" if one.joining.layers else "-"
            share = one.joining.cosine_share
            click.echo(f"{one.joining.layers:6}  {bias:>4}  {share:15.2f}  {one.weight:10.2f}  {one.mean:7.4f}")
        click.echo(f"first pass {choice.first_pass:.4f}, bi-encoder {choice.plain.mean:.4f}")
        means = f"{choice.chosen.mean:.4f}, by cross-validation {choice.held_out:.4f}"
        click.echo(f"chosen {means}: the simplest setting within one standard error of the best")
        if joining.layers == 0:
            click.echo("The plain bi-encoder is as good as any joined setting here, and is what was written.")
        elif choice.plain.mean > choice.chosen.mean:
            click.echo("The plain bi-encoder is better here: --layers 0 writes it.")
    rows = f"{done.rows:.0f} rows of the query per candidate"
    looks = f"{joining.layers} joined layers, bias {joining.bias:g}" if joining.layers else "no joined layer"
    click.echo(f"{output}: {looks}, pooling {joining.pooling}, {rows}")
