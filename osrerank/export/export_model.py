"""Export a Hugging Face checkpoint as an osrerank model directory: ONNX graph, tokenizer, card."""

import json
import logging
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from osrerank._optional import require
from osrerank.errors import ConfigError, ModelLoadError
from osrerank.export.calibration import (
    JudgedQuery,
    after_vectors,
    choose_weight,
    fit_judged,
    read_judged,
)
from osrerank.export.late_interaction import is_late_interaction, read_late_interaction
from osrerank.export.quantise import QuantisationRecipe
from osrerank.export.router import is_router, split
from osrerank.export.write_graphs import GRAPHS, write_graphs
from osrerank.formats.trec import read_qrels
from osrerank.options.rerank import Rerank
from osrerank.scoring.bi_encoder import weights_digest
from osrerank.scoring.card import Calibration, Kind, ModelCard, Pooling
from osrerank.scoring.card_file import module_weights, read_card
from osrerank.scoring.checkpoints.convert import NOTICES, Head, convert_if_needed
from osrerank.scoring.checkpoints.self_check import require_self_check
from osrerank.scoring.json_file import read_json
from osrerank.scoring.locate import locate
from osrerank.scoring.model_files import (
    CARD_FILE,
    CONFIG_FILE,
    TOKENIZER_FILE,
    WEIGHTS_FILE,
    read_config,
    tokenizer_file,
    weight_files,
)
from osrerank.scoring.modular.cross_encoder import read_cross_encoder
from osrerank.scoring.registry import load_scorer
from osrerank.scoring.saved_encoder import EncoderOverrides, is_bi_encoder, read_bi_encoder
from osrerank.settings import DEFAULT_MODEL
from osrerank.types import Qrels

README = "README.md"
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """The kind of model directory that `export_model` makes from a checkpoint.

    Attributes:
        name: the model's name in its card; empty for the output directory's name.
        kind: kind of the new model. ``duo`` compares two documents; a model with two segment embeddings then gets a
            third one. None for the kind of the source.
        third_segment: start of the third segment's embedding: ``zeros``, as in the released duoBERT, or a ``copy`` of
            the document's embedding (`osrerank.export.third_segment`).
        pooling: a bi-encoder's pooling: ``cls``, ``mean``, ``max``, ``weightedmean`` or ``lasttoken``; None for that in
            the source's files.
        query_prefix: the text that precedes every query of a bi-encoder; None for that in the source's files.
        document_prefix: the text that precedes every document of a bi-encoder; None for that in the source's files.
        dimensions: number of leading values that a bi-encoder's vector keeps; None for that in the source's files.
        pool_factor: number of tokens for which a late-interaction model keeps about one vector of a document; None for
            that in the source's files.
        precision: ``fp32`` or ``int8``; empty for int8 if sentence-transformers saved the bi-encoder, else for fp32.
        recipe: how the graph is quantised.
        first_pass_weight: logits that the query's best first-pass score adds in a blend. None chooses it by the
            development set, if there is one, else keeps the source's.
        padded: whether the graph takes padded batches, for other programs; otherwise BERTs and ModernBERTs get the
            faster graphs of `osrerank.export.graph` and `osrerank.export.modern_bert_graph`.
        keep_weights: whether to copy the safetensors, for the torch backend.
        head: form of the head, if the source's files do not say it: ``logit1``, ``logits2`` or ``next-sentence``.
        self_check: whether a cross-encoder that osrerank did not train must rank paragraphs that answer a question
            above random ones (`osrerank.scoring.checkpoints.self_check`).
        provenance: the provenance for the card; empty for the source's.
        vector_model: the bi-encoder for which a development set chooses a cross-encoder's ``vectors_weight``.
    """

    name: str = ""
    kind: Kind | None = None
    third_segment: Literal["zeros", "copy"] = "zeros"
    pooling: Pooling | None = None
    query_prefix: str | None = None
    document_prefix: str | None = None
    dimensions: int | None = None
    pool_factor: float | None = None
    precision: str = ""
    recipe: QuantisationRecipe = field(default_factory=QuantisationRecipe)
    first_pass_weight: float | None = None
    padded: bool = False
    keep_weights: bool = False
    head: Head = ""
    self_check: bool = False
    provenance: Mapping[str, Any] = field(default_factory=dict)
    vector_model: str = DEFAULT_MODEL


def export_model(
    source: Path,
    output: Path,
    options: ExportOptions | None = None,
    *,
    judged: tuple[Path, Path] | None = None,
    report: Callable[[str], None] = logger.info,
) -> ModelCard:
    """Write an osrerank model directory, completely or not at all.

    Args:
        source: a directory with ``config.json``, ``tokenizer.json`` and safetensors; a bi-encoder that
            sentence-transformers saved; an older format, which is converted first (`osrerank.scoring.checkpoints`); or
            a model whose weights are in a graph that osrerank exported.
        output: the directory to make; it must not exist.
        options: what to make.
        judged: candidates (JSON lines) and judgments (TREC) of a development set, which fits the calibration and
            chooses the first pass's weight.
        report: called with the self-check's findings, and with the weight and its nDCG@10.

    Raises:
        ConfigError: the output exists, or the options contradict each other.
        FormatError: the development set cannot be read.
        EvaluationError: the development set is too small, or its judgments contradict the scores.
        ModelLoadError: the source cannot be read as a model.
        MissingDependencyError: the extra ``onnx`` is not installed.
    """
    options = options or ExportOptions()
    is_foreign = not (source / CARD_FILE).exists() and (
        is_bi_encoder(source) or is_late_interaction(source) or options.pooling is not None
    )
    precision = options.precision or ("int8" if is_foreign else "fp32")
    options = replace(options, precision=precision, name=options.name or output.name)
    _check(options, judged)
    refuse_existing(output)
    require("torch", extra="onnx")
    require("onnx", extra="onnx")
    if is_router(source):
        return _export_routes(source, output, options, judged, report)
    if is_foreign:
        with _converted(source, output, options) as ready:
            return _export(ready, output, options, judged, report, sha256="")
    checkpoint = convert_if_needed(source, options.head)
    return _export(checkpoint.directory, output, options, judged, report, sha256=checkpoint.sha256)


def _export_routes(
    source: Path,
    output: Path,
    options: ExportOptions,
    judged: tuple[Path, Path] | None,
    report: Callable[[str], None],
) -> ModelCard:
    """Export the model of documents, and that of queries into a folder of it."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}.") as parent:
        routes, queries = split(source, Path(parent)), Path(parent) / "made" / "query"
        export_model(routes["query"], queries, options)
        with _converted(routes["document"], output, options) as ready:
            return _export(ready, output, options, judged, report, sha256="", queries=queries)


def _export(
    source: Path,
    output: Path,
    options: ExportOptions,
    judged: tuple[Path, Path] | None,
    report: Callable[[str], None],
    *,
    sha256: str,
    queries: Path | None = None,
) -> ModelCard:
    card = _card(source, options)
    with new_directory(output) as folder, _with_segments(source, output, options) as ready:
        _copy_descriptions(ready, folder, card, options)
        if queries is not None:
            card = replace(card, query_model=queries.name)
            shutil.copytree(queries, folder / queries.name)
        write_graphs(ready, folder, card, precision=options.precision, recipe=options.recipe, padded=options.padded)
        write_card(folder, card)
        if judged is not None:
            card = _fitted(folder, card, options, *judged, report)
            write_card(folder, card)
        if options.self_check and not card.is_encoder and not (source / CARD_FILE).exists():
            with closing(load_scorer(str(folder), backend="onnx")) as scorer:
                report(str(require_self_check(scorer, folder, card, sha256=sha256)))
    return card


def write_card(directory: Path, card: ModelCard) -> None:
    """Write the card as ``osrerank.json``."""
    text = json.dumps(card.to_json(), indent=2, ensure_ascii=False, default=dict)
    (directory / CARD_FILE).write_text(f"{text}\n", encoding="utf-8")


def refuse_existing(output: Path) -> None:
    """Raise an error if the output exists.

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


def _check(options: ExportOptions, judged: tuple[Path, Path] | None) -> None:
    """Refuse options that contradict each other."""
    if options.kind == "duo" and judged is not None:
        message = "a duo model compares two documents, so judgments cannot calibrate it; leave them out"
        raise ConfigError(message, setting="candidates", source="argument")


@contextmanager
def _converted(source: Path, output: Path, options: ExportOptions) -> Iterator[Path]:
    """Yield a temporary copy of an encoder that another library saved, with a card."""
    overrides = options.pooling, options.query_prefix, options.document_prefix, options.dimensions, options.pool_factor
    read_source = read_late_interaction if is_late_interaction(source) else read_bi_encoder
    model = read_source(source, options.name, EncoderOverrides(*overrides))
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}.") as parent:
        folder = Path(parent)
        for file in (CONFIG_FILE, TOKENIZER_FILE, *weight_files(model.directory)):
            if (model.directory / file).exists():
                shutil.copyfile(model.directory / file, folder / file)
        model.write_modules(source, folder)
        for name in (*NOTICES, README):
            if (source / name).exists():
                shutil.copyfile(source / name, folder / name)
        write_card(folder, model.card)
        yield folder


@contextmanager
def _with_segments(source: Path, output: Path, options: ExportOptions) -> Iterator[Path]:
    """Yield the source or, if a duo model needs a third segment that it lacks, a temporary copy that has one."""
    config = read_config(source) if (source / CONFIG_FILE).exists() else {}
    if options.kind != "duo" or config.get("type_vocab_size") != 2:
        yield source
        return
    from osrerank.export.third_segment import write_with_third_row  # noqa: PLC0415 - imports torch

    with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}.") as parent:
        write_with_third_row(source, Path(parent), options.third_segment)
        for name in NOTICES:
            if (source / name).exists():
                shutil.copyfile(source / name, Path(parent) / name)
        yield Path(parent)


def _card(source: Path, options: ExportOptions) -> ModelCard:
    card = read_card(source, name=options.name)
    if options.kind == "duo" and card.kind != "duo":
        card = _compared(card, source)
    weight = card.first_pass_weight if options.first_pass_weight is None else options.first_pass_weight
    onnx = {options.precision: GRAPHS[options.precision]}
    return replace(
        card,
        onnx=onnx,
        first_pass_weight=weight,
        provenance=options.provenance or card.provenance,
        weights=weights_digest(source, card) if card.is_encoder else "",
        languages=card.languages or languages_of(source),
    )


def languages_of(directory: Path) -> tuple[str, ...]:
    """Return the ISO 639 codes that a model's ``README.md`` names in its front matter; empty if it names none."""
    if not (directory / README).exists():
        return ()
    from huggingface_hub import metadata_load  # noqa: PLC0415 - takes half a second

    languages = (metadata_load(directory / README) or {}).get("language") or []
    codes = (str(code).partition("-")[0].lower() for code in ([languages] if isinstance(languages, str) else languages))
    return tuple(dict.fromkeys(code for code in codes if re.fullmatch(r"[a-z]{2,3}", code)))


def _compared(card: ModelCard, source: Path) -> ModelCard:
    """Return the card of the duo model that is made from a cross-encoder.

    Raises:
        ModelLoadError: it is a bi-encoder.
    """
    if card.is_encoder:
        reason = f"{source} is a bi-encoder; a duo model can only be made from a cross-encoder"
        raise ModelLoadError(reason, model=card.name, path=str(source))
    rows = card.segment_rows + (card.segment_rows == 2)
    return replace(card, kind="duo", segment_rows=rows, calibration=Calibration(), first_pass_weight=0.0)


def _fitted(
    folder: Path, card: ModelCard, options: ExportOptions, candidates: Path, qrels: Path, report: Callable[[str], None]
) -> ModelCard:
    """Return the card with a calibration and a first-pass weight that a development set chose.

    A weight in the options stays. A cross-encoder's card also gets the weight of the vectors in ``vectors-mono``.
    """
    judgments = read_qrels(qrels)
    with closing(load_scorer(str(folder), backend="onnx")) as scorer:
        judged = list(read_judged(scorer, card.calibration, candidates, judgments))
    calibration = fit_judged(judged)
    if card.kind == "cross-encoder":
        card = replace(
            card, vectors_weight=_vectors_weight(judged, calibration, options, candidates, judgments, report)
        )
    if options.first_pass_weight is not None:
        return replace(card, calibration=calibration)
    chosen = choose_weight(judged, calibration)
    measured = f"nDCG@10 {chosen.mean:.4f}, by cross-validation {chosen.held_out:.4f}"
    report(f"first-pass weight {chosen.weight:g}: {measured}, the candidates as they came {chosen.first_pass:.4f}")
    return replace(card, calibration=calibration, first_pass_weight=chosen.weight)


def _vectors_weight(
    judged: Sequence[JudgedQuery],
    calibration: Calibration,
    options: ExportOptions,
    candidates: Path,
    qrels: Qrels,
    report: Callable[[str], None],
) -> float:
    """Return the weight of the vectors' logit with which ``vectors-mono`` orders a development set best."""
    with closing(load_scorer(options.vector_model, kinds=("bi-encoder",))) as encoder:
        card = read_card(locate(options.vector_model))
        by_vectors = list(read_judged(encoder, card.calibration, candidates, qrels))
    chosen = choose_weight(after_vectors(judged, by_vectors, card, Rerank().mono_depth), calibration)
    measured = f"nDCG@10 {chosen.mean:.4f}, by cross-validation {chosen.held_out:.4f}"
    baseline = f"vectors of {options.vector_model} alone {chosen.first_pass:.4f}"
    report(f"vectors' weight {chosen.weight:g} in vectors-mono: {measured}, {baseline}")
    return chosen.weight


def _copy_descriptions(source: Path, folder: Path, card: ModelCard, options: ExportOptions) -> None:
    """Copy all files except the graph; the tokenizer loses its padding and truncation, which osrerank does itself."""
    tokenizer = read_json(tokenizer_file(source))
    tokenizer.update(padding=None, truncation=None)
    (folder / TOKENIZER_FILE).write_text(
        json.dumps(tokenizer, ensure_ascii=False, separators=(",", ":")), encoding="utf-8"
    )
    shutil.copyfile(source / CONFIG_FILE, folder / CONFIG_FILE)
    weights = weight_files(source) if options.keep_weights else []
    description = read_cross_encoder(source) if weights else None
    modules: Sequence[str] = ()
    if description:
        modules = (*description.descriptions, *description.weights)
    elif weights:
        modules = module_weights(card)
    for name in [*weights, *modules, *(name for name in NOTICES if (source / name).exists())]:
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(source / name, folder / name)
    if options.keep_weights and not weights:
        _write_weights(source, folder)


def _write_weights(source: Path, folder: Path) -> None:
    """Write a source's weights as safetensors if it has them only in its graph."""
    from osrerank.scoring.backends.torch import read_weights  # noqa: PLC0415 - imports torch

    safetensors: Any = require("safetensors.torch", extra="torch")
    safetensors.save_file(read_weights(source), folder / WEIGHTS_FILE, metadata={"format": "pt"})
