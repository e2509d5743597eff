"""Export a Hugging Face checkpoint as an osrerank model directory, with an ONNX graph, tokenizer and model card."""

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
    FirstPassWeight,
    JudgedQuery,
    calibrate_on_queries,
    choose_weight,
    score_judged_queries,
    simulate_vectors_mono,
)
from osrerank.export.late_interaction import read_late_interaction
from osrerank.export.quantise import QuantisationRecipe
from osrerank.export.router import is_router, split_router
from osrerank.export.write_graphs import GRAPHS, write_graphs
from osrerank.formats.files import add_path_to_disk_errors
from osrerank.formats.trec import read_qrels
from osrerank.options.rerank import Rerank
from osrerank.scoring.bi_encoder import weights_digest
from osrerank.scoring.card import Calibration, Kind, ModelCard, Pooling
from osrerank.scoring.card_file import module_weights, read_card
from osrerank.scoring.checkpoints.convert import NOTICES, HeadForm, convert_if_needed
from osrerank.scoring.checkpoints.self_check import require_self_check
from osrerank.scoring.json_file import read_json
from osrerank.scoring.locate import locate
from osrerank.scoring.model_files import (
    CARD_FILE,
    CONFIG_FILE,
    TOKENIZER_FILE,
    WEIGHTS_FILE,
    copy_existing,
    read_config,
    tokenizer_file,
    weight_files,
)
from osrerank.scoring.modular.cross_encoder import read_cross_encoder
from osrerank.scoring.modular.late_interaction import is_late_interaction
from osrerank.scoring.registry import load_scorer
from osrerank.scoring.saved_encoder import EncoderOverrides, is_bi_encoder, read_bi_encoder
from osrerank.settings import DEFAULT_MODEL
from osrerank.types import Qrels

README = "README.md"
DevelopmentSet = tuple[Path, Path]
"""A file of candidates (JSON lines), and a file of their judgments (TREC)."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """The options of `export_model`. None or an empty value keeps the source's value, unless stated otherwise.

    The card:
        name: the model's name. If it is empty, the name is that of the output directory.
        kind: "duo" turns a cross-encoder into a model that compares two documents.
        provenance: the origin of the model.
        first_pass_weight: the weight of the first-pass score that is added to a document's logit. If it is None and
            there is a development set, the weight is chosen on this set.
        vector_model: the bi-encoder whose scores are added to a cross-encoder's logits in ``vectors-mono``. Their
            weight (``vectors_weight``) is chosen on the development set.

    The source:
        head: the kind of head, if the source's files do not specify it: "logit1", "logits2" or "next-sentence".
        third_segment: the third segment embedding of a duo model whose source has two segment embeddings: "zeros", as
            in the released duoBERT, or a "copy" of the document's embedding (`osrerank.export.third_segment`).
        self_check: whether a cross-encoder that osrerank did not export must rank paragraphs that answer a question
            above random ones (`osrerank.scoring.checkpoints.self_check`).

    A bi-encoder or late-interaction model:
        pooling: "cls", "mean", "max", "weightedmean" or "lasttoken".
        query_prefix: the text that precedes every query.
        document_prefix: the text that precedes every document.
        dimensions: the number of leading values to keep of each vector.
        pool_factor: for a late-interaction model, the number of a document's token vectors that are merged into one,
            on average.

    The output:
        precision: "fp32" or "int8". If it is empty, an encoder that another library saved gets int8, and any other
            model gets fp32.
        recipe: how an int8 graph is quantised.
        keep_weights: whether to copy the safetensors, for the torch backend.
    """

    name: str = ""
    kind: Kind | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    first_pass_weight: float | None = None
    vector_model: str = DEFAULT_MODEL

    head: HeadForm = ""
    third_segment: Literal["zeros", "copy"] = "zeros"
    self_check: bool = False

    pooling: Pooling | None = None
    query_prefix: str | None = None
    document_prefix: str | None = None
    dimensions: int | None = None
    pool_factor: float | None = None

    precision: str = ""
    recipe: QuantisationRecipe = field(default_factory=QuantisationRecipe)
    keep_weights: bool = False


def export_model(
    source: Path,
    output: Path,
    options: ExportOptions | None = None,
    *,
    development_set: DevelopmentSet | None = None,
    report: Callable[[str], None] = logger.info,
) -> ModelCard:
    """Write a checkpoint as an osrerank model directory. If that fails, nothing is written.

    Args:
        source: a directory with ``config.json``, ``tokenizer.json`` and safetensors; an encoder that another library
            saved; a model in an older format, which is converted first (`osrerank.scoring.checkpoints`); or a model
            that osrerank exported, even if only its graph contains the weights.
        output: the directory to create. It must not exist.
        options: the options. If they are None, the defaults are used.
        development_set: the candidates and judgments with which the calibration is fitted and the first-pass weight is
            chosen. If it is None, the card keeps the source's values.
        report: a function that is called with each message about the self-check and the chosen weights.

    Raises:
        ConfigError: the output exists, or the options contradict each other.
        FormatError: the development set cannot be read.
        EvaluationError: the development set is too small, or its judgments contradict the scores.
        ModelLoadError: the source cannot be read as a model.
        MissingDependencyError: the extra ``onnx`` is not installed.
    """
    options = options or ExportOptions()
    # another library saved it, or the option ``pooling`` makes a bi-encoder of it
    is_unconverted_encoder = not (source / CARD_FILE).exists() and (
        is_bi_encoder(source) or is_late_interaction(source) or options.pooling is not None
    )
    precision = options.precision or ("int8" if is_unconverted_encoder else "fp32")
    options = replace(options, precision=precision, name=options.name or output.name)
    if options.kind == "duo" and development_set is not None:
        reason = (
            "a duo model compares two documents, so judgments cannot calibrate it; leave out candidates and judgments"
        )
        raise ConfigError(reason, setting="candidates", source="argument")
    refuse_existing(output)
    require("torch", extra="onnx")
    require("onnx", extra="onnx")
    if is_router(source):
        return _export_routes(source, output, options, development_set, report)
    if is_unconverted_encoder:
        with _convert_encoder(source, output, options) as encoder:
            return _export(encoder, output, options, development_set, report)
    checkpoint = convert_if_needed(source, options.head)
    return _export(checkpoint.directory, output, options, development_set, report, sha256=checkpoint.sha256)


def _export_routes(
    source: Path,
    output: Path,
    options: ExportOptions,
    development_set: DevelopmentSet | None,
    report: Callable[[str], None],
) -> ModelCard:
    """Export the document model of a Router of sentence-transformers, with its query model in a subfolder."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}.") as parent:
        routes = split_router(source, Path(parent))
        query_model = Path(parent) / "exported" / "query"
        export_model(routes["query"], query_model, options)
        with _convert_encoder(routes["document"], output, options) as encoder:
            return _export(encoder, output, options, development_set, report, query_model=query_model)


def _export(
    source: Path,
    output: Path,
    options: ExportOptions,
    development_set: DevelopmentSet | None,
    report: Callable[[str], None],
    *,
    sha256: str = "",
    query_model: Path | None = None,
) -> ModelCard:
    """Export a checkpoint that is already in a format that osrerank reads.

    ``sha256`` is the hash of the checkpoint before its conversion, which the self-check reports. If the source is a
    Router, ``query_model`` is the directory of its exported query model.
    """
    card = _new_card(source, options)
    with new_directory(output) as folder, _with_third_segment(source, output, options) as checkpoint:
        _copy_files(checkpoint, folder, card, options)
        if query_model is not None:
            card = replace(card, query_model=query_model.name)
            shutil.copytree(query_model, folder / query_model.name)
        write_graphs(checkpoint, folder, card, precision=options.precision, recipe=options.recipe)
        write_card(folder, card)  # `load_scorer` reads it
        if development_set is not None:
            card = _calibrate(folder, card, options, development_set, report)
            write_card(folder, card)
        if options.self_check and not card.is_encoder and not (source / CARD_FILE).exists():
            with closing(load_scorer(str(folder), backend="onnx")) as scorer:
                report(str(require_self_check(scorer, folder, card, sha256=sha256)))
    return card


def write_card(directory: Path, card: ModelCard) -> None:
    """Write a model card as ``osrerank.json``."""
    # default=dict converts mappings that are not dicts
    text = json.dumps(card.to_json(), indent=2, ensure_ascii=False, default=dict)
    (directory / CARD_FILE).write_text(f"{text}\n", encoding="utf-8")


def refuse_existing(output: Path) -> None:
    """Raise `ConfigError` if the output directory exists."""
    if output.exists():
        raise ConfigError(
            f"{output} already exists; choose another directory, or remove {output}",
            setting="output",
            source="argument",
        )


@contextmanager
def new_directory(output: Path) -> Iterator[Path]:
    """Yield a temporary directory, which becomes ``output`` at the end of the block, or is removed after an error.

    Raises:
        ConfigError: the output exists.
    """
    refuse_existing(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}.") as parent:
        folder = Path(parent) / output.name
        folder.mkdir()
        with add_path_to_disk_errors(output):
            yield folder
        folder.rename(output)


@contextmanager
def _convert_encoder(source: Path, output: Path, options: ExportOptions) -> Iterator[Path]:
    """Yield a temporary copy of an encoder that another library saved, in osrerank's format."""
    overrides = EncoderOverrides(
        options.pooling, options.query_prefix, options.document_prefix, options.dimensions, options.pool_factor
    )
    read_encoder = read_late_interaction if is_late_interaction(source) else read_bi_encoder
    model = read_encoder(source, options.name, overrides)
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}.") as parent:
        folder = Path(parent)
        copy_existing(model.directory, folder, (CONFIG_FILE, TOKENIZER_FILE, *weight_files(model.directory)))
        model.write_modules(source, folder)
        copy_existing(source, folder, (*NOTICES, README))
        write_card(folder, model.card)
        yield folder


@contextmanager
def _with_third_segment(source: Path, output: Path, options: ExportOptions) -> Iterator[Path]:
    """Yield the source, or a temporary copy with a third segment embedding if a duo model needs one."""
    config = read_config(source) if (source / CONFIG_FILE).exists() else {}
    if options.kind != "duo" or config.get("type_vocab_size") != 2:
        yield source
        return
    from osrerank.export.third_segment import write_with_third_segment  # noqa: PLC0415 - imports torch

    with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}.") as parent:
        write_with_third_segment(source, Path(parent), options.third_segment)
        copy_existing(source, Path(parent), NOTICES)
        yield Path(parent)


def _new_card(source: Path, options: ExportOptions) -> ModelCard:
    """Return the source's card with the values in the options."""
    card = read_card(source, name=options.name)
    if options.kind == "duo" and card.kind != "duo":
        card = _duo_card(card, source)
    if options.first_pass_weight is not None:
        card = replace(card, first_pass_weight=options.first_pass_weight)
    return replace(
        card,
        onnx={options.precision: GRAPHS[options.precision]},
        provenance=options.provenance or card.provenance,
        weights=weights_digest(source, card) if card.is_encoder else "",
        languages=card.languages or _read_languages(source),
    )


def _read_languages(directory: Path) -> tuple[str, ...]:
    """Return the ISO 639 codes of the languages in the front matter of a model's ``README.md``."""
    if not (directory / README).exists():
        return ()
    from huggingface_hub import metadata_load  # noqa: PLC0415 - the import takes half a second

    languages = (metadata_load(directory / README) or {}).get("language") or []
    if isinstance(languages, str):
        languages = [languages]
    codes = (str(language).partition("-")[0].lower() for language in languages)
    return tuple(dict.fromkeys(code for code in codes if re.fullmatch(r"[a-z]{2,3}", code)))


def _duo_card(card: ModelCard, source: Path) -> ModelCard:
    """Return a cross-encoder's card as that of a duo model, whose logits need another calibration."""
    if card.is_encoder:
        reason = f"{source} is a bi-encoder; only a cross-encoder can become a duo model"
        raise ModelLoadError(reason, model=card.name, path=str(source))
    # `_with_third_segment` adds the third row
    segment_rows = 3 if card.segment_rows == 2 else card.segment_rows
    return replace(card, kind="duo", segment_rows=segment_rows, calibration=Calibration(), first_pass_weight=0.0)


def _calibrate(
    folder: Path,
    card: ModelCard,
    options: ExportOptions,
    development_set: DevelopmentSet,
    report: Callable[[str], None],
) -> ModelCard:
    """Fit the calibration on a development set, and choose the first-pass weight unless the options set it.

    For a cross-encoder, the weight of a bi-encoder's vectors in the pipeline ``vectors-mono`` is chosen too.
    """
    candidates, judgments_file = development_set
    judgments = read_qrels(judgments_file)
    with closing(load_scorer(str(folder), backend="onnx")) as scorer:
        queries = list(score_judged_queries(scorer, card.calibration, candidates, judgments))
    calibration = calibrate_on_queries(queries)
    card = replace(card, calibration=calibration)
    if card.kind == "cross-encoder":
        weight = _choose_vectors_weight(queries, calibration, options, candidates, judgments, report)
        card = replace(card, vectors_weight=weight)
    if options.first_pass_weight is not None:
        return card
    choice = choose_weight(queries, calibration)
    baseline = f"first pass alone {choice.first_pass_ndcg:.4f}"
    report(f"first-pass weight {choice.weight:g}: {_describe_quality(choice)}, {baseline}")
    return replace(card, first_pass_weight=choice.weight)


def _choose_vectors_weight(
    queries: Sequence[JudgedQuery],
    calibration: Calibration,
    options: ExportOptions,
    candidates: Path,
    qrels: Qrels,
    report: Callable[[str], None],
) -> float:
    """Choose the weight of the vectors with which the pipeline ``vectors-mono`` has the best nDCG@10."""
    with closing(load_scorer(options.vector_model, kinds=("bi-encoder",))) as encoder:
        encoder_card = read_card(locate(options.vector_model))
        vector_queries = list(score_judged_queries(encoder, encoder_card.calibration, candidates, qrels))
    # `choose_weight` takes the order by vectors for the first pass
    simulated_queries = simulate_vectors_mono(queries, vector_queries, encoder_card, Rerank().mono_depth)
    choice = choose_weight(simulated_queries, calibration)
    baseline = f"vectors of {options.vector_model} alone {choice.first_pass_ndcg:.4f}"
    report(f"vectors' weight {choice.weight:g} in vectors-mono: {_describe_quality(choice)}, {baseline}")
    return choice.weight


def _describe_quality(choice: FirstPassWeight) -> str:
    return f"nDCG@10 {choice.ndcg:.4f}, by cross-validation {choice.cross_validated_ndcg:.4f}"


def _copy_files(source: Path, folder: Path, card: ModelCard, options: ExportOptions) -> None:
    """Copy all files except the graph and the card.

    The tokenizer loses its settings for padding and truncation, because osrerank pads and truncates itself.
    """
    tokenizer = read_json(tokenizer_file(source))
    tokenizer.update(padding=None, truncation=None)
    (folder / TOKENIZER_FILE).write_text(
        json.dumps(tokenizer, ensure_ascii=False, separators=(",", ":")), encoding="utf-8"
    )
    shutil.copyfile(source / CONFIG_FILE, folder / CONFIG_FILE)
    copy_existing(source, folder, NOTICES)
    if options.keep_weights and weight_files(source):
        for name in _list_weight_names(source, card):
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(source / name, folder / name)
    elif options.keep_weights:
        _write_graph_weights(source, folder)


def _list_weight_names(source: Path, card: ModelCard) -> list[str]:
    """Return the files with a source's weights and, for a modular cross-encoder, those that describe its modules."""
    weights = weight_files(source)
    cross_encoder = read_cross_encoder(source)
    if cross_encoder is None:
        return [*weights, *module_weights(card)]
    return [*weights, *cross_encoder.description_files, *cross_encoder.weight_files]


def _write_graph_weights(source: Path, folder: Path) -> None:
    """Write the weights of a source that has only a graph, as safetensors."""
    from osrerank.scoring.backends.torch import read_weights  # noqa: PLC0415 - imports torch

    safetensors: Any = require("safetensors.torch", extra="torch")
    safetensors.save_file(read_weights(source), folder / WEIGHTS_FILE, metadata={"format": "pt"})
