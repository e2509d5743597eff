"""From a Hugging Face directory to an osrerank model directory: ONNX graph, tokenizer, card."""

import json
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from osrerank._optional import require
from osrerank.errors import ConfigError, ModelLoadError
from osrerank.export.calibration import fit_scorer, read_labelled
from osrerank.export.quantise import Recipe
from osrerank.export.write_graphs import GRAPHS, join_files, write_graphs
from osrerank.formats.trec import read_qrels
from osrerank.scoring.card import Calibration, CrossBias, Kind, Layout, ModelCard, with_pool_factor
from osrerank.scoring.checkpoints.convert import NOTICES, Head, usable
from osrerank.scoring.checkpoints.self_check import checked
from osrerank.scoring.model_files import (
    CARD_FILE,
    CONFIG_FILE,
    TOKENIZER_FILE,
    WEIGHTS_FILE,
    modular,
    read_card,
    read_json,
    tokenizer_file,
    weight_files,
)
from osrerank.scoring.registry import load_scorer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What to make of a checkpoint.

    Attributes:
        name: the model's name in its card; the output directory's when empty.
        kind: ``duo`` makes a model that compares two documents: a classifier gets a third segment where it has two.
        third_segment: what that segment's embedding is: ``zeros``, as the released duoBERT computes it, or a ``copy``
            of the document's (`osrerank.export.third_segment`).
        layout: ``cross-bias`` makes a reranker of a bi-encoder; ``standard`` exports a reranker as it is, whatever its
            card's layout.
        query_bias: for ``cross-bias``: added to the query's attention to the document; a number or ``closed``. A duo
            model's is less by log 2 (`osrerank.scoring.card.CrossBias.as_duo`).
        document_bias: for ``cross-bias``: the other direction.
        other_bias: for ``cross-bias`` with the kind ``duo``: added to one document's attention to the other.
        pool_factor: for ``cross-bias``: a document's pieces for each of its states, on average
            (`osrerank.scoring.networks.cross_bias`); None for the source's own. A different one drops the source's
            calibration and measures.
        precision: ``fp32`` or ``int8``.
        recipe: how int8 is made.
        first_pass_weight: logits that the best first-pass score adds in a blend; for the card.
        padded: whether the graph takes padded batches, for other programs; otherwise BERTs and ModernBERTs get the
            faster graphs of `osrerank.export.graph` and `osrerank.export.modern_bert_graph`.
        keep_weights: whether to copy the safetensors, for the torch backend.
        head: what the head is, where the source's files do not say: ``logit1``, ``logits2`` or ``next-sentence``.
        self_check: whether a model of the layout ``standard`` that osrerank did not make must put paragraphs that
            answer a question before random ones, as a trained one does (`osrerank.scoring.checkpoints.self_check`).
        provenance: for the card.
    """

    name: str = ""
    kind: Kind = "mono"
    third_segment: Literal["zeros", "copy"] = "zeros"
    layout: Layout = "standard"
    query_bias: float | str = -2.0
    document_bias: float | str = "closed"
    other_bias: float | str = -4.0
    pool_factor: float | None = None
    precision: str = "fp32"
    recipe: Recipe = field(default_factory=Recipe)
    first_pass_weight: float = 0.0
    padded: bool = False
    keep_weights: bool = False
    head: Head = ""
    self_check: bool = False
    provenance: Mapping[str, Any] = field(default_factory=dict)


def export_model(
    source: Path,
    output: Path,
    options: ExportOptions | None = None,
    *,
    calibrate: tuple[Path, Path] | None = None,
    report: Callable[[str], None] = logger.info,
) -> ModelCard:
    """Write an osrerank model directory; it appears whole or not at all.

    Args:
        source: a directory with ``config.json``, ``tokenizer.json`` and safetensors, another form that is converted
            first (`osrerank.scoring.checkpoints`), or a model whose weights are in a graph that osrerank exported.
        output: the directory to make; it must not exist.
        options: what to make.
        calibrate: candidates (JSON lines) and judgments (TREC) of a development set, for the map to probabilities.
        report: gets what the self-check found.

    Raises:
        ConfigError: the output exists, or the options do not go together.
        FormatError: the development set cannot be read.
        EvaluationError: the development set calibrates nothing.
        ModelLoadError: the source cannot be read as a model of that layout.
        MissingDependencyError: the extra ``onnx`` is not installed.
    """
    options = options or ExportOptions()
    _check(options, calibrate)
    require("torch", extra="onnx")
    require("onnx", extra="onnx")
    found = usable(source, options.head)
    source = found.directory
    card = with_pool_factor(_card(source, output.name, options), options.pool_factor)
    with new_directory(output) as folder, _with_segments(source, output, card, options) as ready:
        _copy_descriptions(ready, folder, options)
        write_graphs(ready, folder, card, precision=options.precision, recipe=options.recipe, padded=options.padded)
        write_card(folder, card)
        if calibrate is not None:
            card = replace(card, calibration=_calibration(folder, *calibrate))
            write_card(folder, card)
        if options.self_check and card.layout == "standard" and not (source / CARD_FILE).exists():
            with closing(load_scorer(str(folder), backend="onnx")) as scorer:
                report(str(checked(scorer, folder, card, sha256=found.sha256)))
    return card


def write_card(directory: Path, card: ModelCard) -> None:
    """Write the card as ``osrerank.json``."""
    text = json.dumps(card.to_json(), indent=2, ensure_ascii=False, default=dict)
    (directory / CARD_FILE).write_text(f"{text}\n", encoding="utf-8")


def refuse_existing(output: Path) -> None:
    """Refuse to overwrite.

    Raises:
        ConfigError: the output exists.
    """
    if output.exists():
        raise ConfigError(
            f"{output} exists; name a directory that does not, or remove it", setting="output", source="argument"
        )


@contextmanager
def new_directory(output: Path) -> Iterator[Path]:
    """Yield a temporary directory beside ``output`` that is renamed to it at the end and removed on any error.

    Raises:
        ConfigError: the output exists.
    """
    refuse_existing(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}.") as parent:
        folder = Path(parent) / output.name
        folder.mkdir()
        yield folder
        folder.rename(output)


def _check(options: ExportOptions, calibrate: tuple[Path, Path] | None) -> None:
    """Refuse options that contradict each other."""
    if options.precision != "int8" and options.recipe.activations == "static":
        message = f"static scales are of int8 activations, the graph is to be {options.precision}; add --precision int8"
        raise ConfigError(message, setting="activations", source="argument")
    if options.kind == "duo" and calibrate is not None:
        message = "a duo model is not calibrated on judged documents: it says which of two is better; leave it out"
        raise ConfigError(message, setting="calibrate", source="argument")


@contextmanager
def _with_segments(source: Path, output: Path, card: ModelCard, options: ExportOptions) -> Iterator[Path]:
    """Yield the source; for a duo model that needs a third segment, a copy that has it."""
    config = read_json(source / CONFIG_FILE) if (source / CONFIG_FILE).exists() else {}
    if options.kind != "duo" or card.layout != "standard" or config.get("type_vocab_size") != 2:
        yield source
        return
    from osrerank.export.third_segment import write_with_third_row  # noqa: PLC0415 - imports torch

    with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}.") as parent:
        write_with_third_row(source, Path(parent), options.third_segment)
        for name in NOTICES:
            if (source / name).exists():
                shutil.copyfile(source / name, Path(parent) / name)
        yield Path(parent)


def _card(source: Path, name: str, options: ExportOptions) -> ModelCard:
    onnx = {options.precision: GRAPHS[options.precision]}
    if options.layout == "standard":
        card = read_card(source, name=options.name or name)
        if options.kind == "duo" and card.kind == "mono":
            card = _compared(card, options)
        onnx |= join_files(card, options.precision)
        weight = options.first_pass_weight or card.first_pass_weight
        return replace(card, onnx=onnx, first_pass_weight=weight, provenance=options.provenance or card.provenance)
    config = read_json(source / CONFIG_FILE)
    if config.get("model_type") != "bert":
        reason = f"{source / CONFIG_FILE}: model_type is {config.get('model_type')!r}; the layout cross-bias needs bert"
        raise ModelLoadError(reason, model=name, path=str(source))
    cross_bias = CrossBias(options.query_bias, options.document_bias)
    return ModelCard(
        name=options.name or name,
        head="cosine",
        kind=options.kind,
        layout="cross-bias",
        max_tokens=min(512, int(config["max_position_embeddings"])),
        segment_rows=int(config["type_vocab_size"]),
        onnx=onnx,
        cross_bias=cross_bias.as_duo(options.other_bias) if options.kind == "duo" else cross_bias,
        first_pass_weight=options.first_pass_weight,
        provenance=options.provenance,
    )


def _compared(card: ModelCard, options: ExportOptions) -> ModelCard:
    """Return a mono model's card as a duo model's."""
    if card.layout == "joined":
        duo = replace(card, kind="duo", joining=card.joining.as_duo())
    elif card.layout == "cross-bias":
        duo = replace(card, kind="duo", cross_bias=card.cross_bias.as_duo(options.other_bias))
    else:
        duo = replace(card, kind="duo", segment_rows=card.segment_rows + (card.segment_rows == 2))
    return replace(duo, calibration=Calibration(), first_pass_weight=0.0)


def _calibration(folder: Path, candidates: Path, qrels: Path) -> Calibration:
    scorer = load_scorer(str(folder), backend="onnx")
    return fit_scorer(scorer, read_labelled(candidates, read_qrels(qrels)))


def _copy_descriptions(source: Path, folder: Path, options: ExportOptions) -> None:
    """Copy the files beside the graph; the tokenizer without padding and truncation, which osrerank does itself."""
    tokenizer = read_json(tokenizer_file(source))
    tokenizer.update(padding=None, truncation=None)
    (folder / TOKENIZER_FILE).write_text(
        json.dumps(tokenizer, ensure_ascii=False, separators=(",", ":")), encoding="utf-8"
    )
    shutil.copyfile(source / CONFIG_FILE, folder / CONFIG_FILE)
    kept = weight_files(source) if options.keep_weights else []
    described = modular(source) if kept else None
    modules = [*described.descriptions, *described.weights] if described else []
    for name in [*kept, *modules, *(name for name in NOTICES if (source / name).exists())]:
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(source / name, folder / name)
    if options.keep_weights and not kept:
        _write_weights(source, folder)


def _write_weights(source: Path, folder: Path) -> None:
    """Write the weights of a source that has them only in its graph."""
    from osrerank.scoring.torch_scorer import read_weights  # noqa: PLC0415 - imports torch

    safetensors: Any = require("safetensors.torch", extra="torch")
    safetensors.save_file(read_weights(source), folder / WEIGHTS_FILE, metadata={"format": "pt"})
