"""From a public bi-encoder to a joined reranker's directory."""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from osrerank._optional import require
from osrerank.adapt.bi_encoder import BiEncoder, read_bi_encoder
from osrerank.adapt.choose import FOLDS, Choice, Judged, choose, key_of
from osrerank.errors import ConfigError, EvaluationError
from osrerank.export.calibration import fit_calibration
from osrerank.export.export_model import ExportOptions, export_model, refuse_existing, write_card
from osrerank.formats.candidates import CandidateList, candidate_lists
from osrerank.formats.trec import read_qrels
from osrerank.scoring.card import Calibration, Joining, ModelCard, Pooling
from osrerank.scoring.model_files import CONFIG_FILE, TOKENIZER_FILE, weight_files

DEFAULT_BIASES = {"cls": -3.0, "mean": -4.0}
DEFAULT_WEIGHTS = {"cls": 0.1, "mean": 0.05}
"""Both by pooling, of bge-small-en-v1.5 and e5-small-v2 (docs/research/joined.md)."""
UNCALIBRATED = Calibration(20.0, -15.0)
"""Puts the logits of the usual cosines, .6 to .9, on both sides of 0; no probability is meant by it."""
TITLE_SEPARATOR = " "


@dataclass(frozen=True, slots=True)
class AdaptOptions:
    """What to make of a bi-encoder.

    Attributes:
        name: the model's name in its card; the output directory's when empty.
        pooling: ``cls`` or ``mean``; None for what the files say.
        query_prefix: None for what the files say.
        document_prefix: likewise.
        layers: how many of the last layers are joined; None to choose, or for one where there is nothing to choose by.
        bias: g; likewise.
        precision: ``int8`` or ``fp32``, of the graphs.
        keep_weights: whether to copy the safetensors, for the torch backend.
    """

    name: str = ""
    pooling: Pooling | None = None
    query_prefix: str | None = None
    document_prefix: str | None = None
    layers: int | None = None
    bias: float | None = None
    precision: str = "int8"
    keep_weights: bool = False


@dataclass(frozen=True, slots=True)
class Adapted:
    """What `adapt` made.

    Attributes:
        card: the model's.
        choice: how it was chosen; None without judgments.
        rows: of the query, that are computed for each candidate, on average over the queries, or for one of 8 pieces.
    """

    card: ModelCard
    choice: Choice | None
    rows: float


def adapt(
    source: Path,
    output: Path,
    options: AdaptOptions | None = None,
    *,
    judged: tuple[Path, Path] | None = None,
    report: Callable[[str], None] = print,
) -> Adapted:
    """Write a joined reranker; the directory appears whole or not at all.

    Args:
        source: a BERT bi-encoder in sentence-transformers' layout, with safetensors.
        output: the directory to make; it must not exist.
        options: what to make.
        judged: candidates (JSON lines) and judgments (TREC) to choose and to calibrate by.
        report: gets a line now and then while candidates are scored.

    Raises:
        ConfigError: the output exists, or the options do not go together.
        ModelLoadError: the source cannot be adapted; the message says why.
        FormatError: candidates or judgments cannot be read.
        EvaluationError: there are too few judged queries to choose by.
        MissingDependencyError: the extra ``onnx`` is not installed.
    """
    options = options or AdaptOptions()
    refuse_existing(output)
    require("torch", extra="onnx")
    model = read_bi_encoder(
        source,
        pooling=options.pooling,
        query_prefix=options.query_prefix,
        document_prefix=options.document_prefix,
    )
    settings = _settings(model, options, by_judgments=judged is not None)
    card = _card(model, options.name or output.name)
    if judged is None:
        joining = settings[0]
        weight = DEFAULT_WEIGHTS[model.pooling] * UNCALIBRATED.scale
        card = replace(card, joining=joining, calibration=UNCALIBRATED, first_pass_weight=weight)
        adapted = Adapted(card, None, _rows(joining, 8 + 2))
    else:
        adapted = _chosen(model, card, settings, *judged, options.precision, report)
    _write(model, output, adapted.card, options)
    return adapted


def _settings(model: BiEncoder, options: AdaptOptions, *, by_judgments: bool) -> list[Joining]:
    from osrerank.adapt.grid import joinings  # noqa: PLC0415 - imports torch

    most = int(model.config["num_hidden_layers"])
    if options.layers is not None and options.layers > most:
        raise ConfigError(f"layers is {options.layers}; the model has {most}", setting="layers", source="argument")
    every = [one for one in joinings(model.pooling, model.query_prefix, model.document_prefix) if one.layers <= most]
    if by_judgments and options.layers is None and options.bias is None:
        return every
    layers = 1 if options.layers is None else options.layers
    bias = DEFAULT_BIASES[model.pooling] if options.bias is None else options.bias
    given = replace(every[0], layers=layers, bias=bias)
    return [given, every[0]] if by_judgments and layers else [given]


def _card(model: BiEncoder, name: str) -> ModelCard:
    return ModelCard(
        name=name,
        head="cosine",
        layout="joined",
        max_tokens=model.max_tokens,
        max_query_tokens=model.max_tokens,
        segment_rows=int(model.config["type_vocab_size"]),
    )


def _chosen(
    model: BiEncoder,
    card: ModelCard,
    settings: Sequence[Joining],
    candidates: Path,
    qrels: Path,
    precision: str,
    report: Callable[[str], None],
) -> Adapted:
    judgments = read_qrels(qrels).judgments
    lists = [
        one
        for one in candidate_lists(candidates)
        if one.documents and _is_judged(judgments.get(one.query.query_id, {}))
    ]
    if len(lists) < FOLDS:
        reason = f"{candidates} has {len(lists)} queries with a relevant document in {qrels}; {FOLDS} are needed"
        raise EvaluationError(reason)
    judged = list(_score(model, lists, judgments, settings, precision, report))
    choice = choose(judged, settings)
    joining = choice.chosen.joining
    raw = [_raw(one, joining) for one in judged]
    relevant = [np.array([one.relevance.get(doc_id, 0) > 0 for doc_id in one.doc_ids]) for one in judged]
    calibration = fit_calibration(np.concatenate(raw).astype(np.float32), np.concatenate(relevant))
    weight = choice.chosen.weight * calibration.scale
    tokenizer = tokenizer_of(model)
    tokens = np.mean([len(tokenizer.encode(model.query_prefix + one.query.text).ids) for one in lists])
    provenance = {"measures": {"nDCG@10, held out": round(choice.held_out, 4), "queries": len(judged)}}
    made = replace(card, joining=joining, calibration=calibration, first_pass_weight=weight, provenance=provenance)
    return Adapted(made, choice, _rows(joining, float(tokens)))


def _is_judged(relevance: Any) -> bool:
    return any(grade > 0 for grade in relevance.values())


def _score(
    model: BiEncoder,
    lists: Sequence[CandidateList],
    judgments: Any,
    settings: Sequence[Joining],
    precision: str,
    report: Callable[[str], None],
) -> Iterator[Judged]:
    """Yield each query's candidates with the scores of all settings."""
    from osrerank.adapt.grid import Grid, Setting  # noqa: PLC0415 - imports torch

    named = {str(number): Setting(joining) for number, joining in enumerate(settings)}
    backend = load_backend(model, precision, max(joining.layers for joining in settings))
    grid = Grid(load_encoder(model), backend, tokenizer_of(model), named)
    for number, one in enumerate(lists, 1):
        texts = [f"{doc.get('title') or ''}{TITLE_SEPARATOR}{doc['text']}".strip() for doc in one.documents]
        scores = grid.scores(one.query.text, texts)
        first_pass = np.array([doc.get("score") or 0.0 for doc in one.documents], dtype=np.float64)
        best = first_pass.max()
        yield Judged(
            {key_of(joining): scores[str(place)] for place, joining in enumerate(settings)},
            first_pass / best if best > 0 else np.zeros_like(first_pass),
            [doc["id"] for doc in one.documents],
            judgments[one.query.query_id],
        )
        if number % 50 == 0 or number == len(lists):
            report(f"{number} of {len(lists)} queries scored")


def load_backend(model: BiEncoder, precision: str, layers: int) -> Any:
    """Return the bi-encoder's graph as a `JoinedBackend` that gives the states of so many last layers."""
    from osrerank.scoring.onnx_scorer import JoinedBackend  # noqa: PLC0415 - imports numpy

    card = replace(_card(model, "encoder"), joining=Joining(layers, rows="all", pooling=model.pooling))
    with tempfile.TemporaryDirectory(prefix="osrerank-adapt-") as parent:
        made = Path(parent) / "encoder"
        card = _export(model, made, card, AdaptOptions(precision=precision))
        return JoinedBackend.load(made, card)


def load_encoder(model: BiEncoder) -> Any:
    """Return the bi-encoder as a `JoinedEncoder` with no joined layer, in evaluation mode."""
    from osrerank.scoring.networks.joined import joined_from_bert  # noqa: PLC0415 - imports torch
    from osrerank.scoring.torch_scorer import read_weights  # noqa: PLC0415 - likewise

    return joined_from_bert(read_weights(model.directory), model.config, Joining(0, rows="all", pooling=model.pooling))


def tokenizer_of(model: BiEncoder) -> Any:
    """Return the model's tokenizer, which truncates and does not pad."""
    from tokenizers import Tokenizer  # noqa: PLC0415 - with torch's half

    tokenizer = Tokenizer.from_file(str(model.directory / TOKENIZER_FILE))
    tokenizer.no_padding()
    tokenizer.enable_truncation(model.max_tokens)
    tokenizer.encode_special_tokens = True
    return tokenizer


def _raw(one: Judged, joining: Joining) -> Any:
    """Return the model's own scores of a query's candidates."""
    share = joining.cosine_share
    return (1 - share) * one.scores[key_of(joining)] + share * one.scores[(0, 0.0)]


def _rows(joining: Joining, tokens: float) -> float:
    """Return how many rows of a query go through a layer for each candidate."""
    last = 1 if joining.pooling == "cls" else tokens
    moving = 1 if joining.rows == "cls" else tokens
    return 0.0 if joining.layers == 0 else (joining.layers - 1) * moving + last


def _write(model: BiEncoder, output: Path, card: ModelCard, options: AdaptOptions) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    _export(model, output, card, options)
    _add_origin(model, output, card.joining)


def _export(model: BiEncoder, output: Path, card: ModelCard, options: AdaptOptions) -> ModelCard:
    """Write the model's graphs beside the card, and return the card with their names."""
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}.") as parent:
        folder = Path(parent)
        for file in (CONFIG_FILE, TOKENIZER_FILE, *weight_files(model.directory)):
            shutil.copyfile(model.directory / file, folder / file)
        for notice in ("LICENSE", "NOTICE"):
            if (model.directory / notice).exists():
                shutil.copyfile(model.directory / notice, folder / notice)
        write_card(folder, card)
        made = ExportOptions(name=card.name, precision=options.precision, keep_weights=options.keep_weights)
        return export_model(folder, output, made)


def _add_origin(model: BiEncoder, output: Path, joining: Joining) -> None:
    """Write a README that says what the model was made of."""
    layers = f"{joining.layers} joined layers, bias {joining.bias:g}, rows {joining.rows}, pooling {joining.pooling}"
    origin = f"A joined reranker that `osrerank adapt` made of the bi-encoder {model.directory.name}, without training"
    text = f"# {output.name}\n\n{origin}: {layers}.\nIts licence is the bi-encoder's.\n"
    (output / "README.md").write_text(text, "utf-8")
