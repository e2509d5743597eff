"""What a model directory holds, and how its scores are meant: the model card."""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from osrerank.errors import ConfigError, ModelLoadError

CARD_FILE = "osrerank.json"
CONFIG_FILE = "config.json"
TOKENIZER_FILE = "tokenizer.json"
WEIGHTS_FILE = "model.safetensors"
CARD_VERSION = 1
SLACK = 1e-3
"""A quotient above a whole number by less counts as it, so that no rounding decides how many states there are."""
PICKLES = ("pytorch_model.bin", "model.bin", "pytorch_model.pt", "model.pt", "model.pth")
ONNX_FILES = {
    "int8": ("onnx/model_int8.onnx", "onnx/model_quantized.onnx"),
    "fp32": ("onnx/model.onnx", "model.onnx"),
}
"""Where exports of others keep their graphs, by precision; files for one processor only are not among them."""
POOLING = ("query_pool_factor", "pool_factor")
"""Where a card's biases have its `PoolFactors`."""
FIXED_SCALES = "osrerank.fixed_scales"
"""In the metadata of a graph whose activations have scales fixed at export (`osrerank.export.fixed_scales`)."""
CHOICES = {
    "kind": ("mono", "duo"),
    "head": ("logit1", "logits2", "next-sentence", "cosine"),
    "layout": ("standard", "cross-bias"),
    "length_rule": ("paper", "released"),
}

Kind = Literal["mono", "duo"]
Head = Literal["logit1", "logits2", "next-sentence", "cosine"]
Layout = Literal["standard", "cross-bias"]
LengthRule = Literal["paper", "released"]


@dataclass(frozen=True, slots=True)
class Calibration:
    """The affine map from a raw score to a logit: ``scale * raw + offset``."""

    scale: float = 1.0
    offset: float = 0.0

    def __post_init__(self) -> None:
        if not self.scale > 0:
            raise ValueError(
                f"the calibration's scale is {self.scale}; it must be above 0, or the order would turn round"
            )


class PoolFactors(NamedTuple):
    """Pieces for each state of a query and of a document, on average; 1 where each piece has its own."""

    query: float = 1.0
    document: float = 1.0

    @property
    def pools(self) -> bool:
        """Whether pieces share states."""
        return max(self) > 1

    def of_segments(self, segments: int) -> tuple[float, ...]:
        """Return the factor of each of so many segments: the query, then the documents."""
        return (self.query, *[self.document] * (segments - 1))

    def states(self, segments: npt.NDArray[np.int64]) -> int:
        """Return how many states a sequence of these segments ``(tokens,)`` gets: 0 a query's, 1 and 2 documents'."""
        if not self.pools:
            return len(segments)
        pieces = np.bincount(segments)
        parts = zip(pieces.tolist(), self.of_segments(len(pieces)), strict=True)
        return sum(states_of(count, factor) for count, factor in parts if count)

    def for_card(self) -> dict[str, float]:
        """Return what a card's biases have of them."""
        return {name: factor for name, factor in zip(POOLING, self, strict=True) if factor != 1}


@dataclass(frozen=True, slots=True)
class ModelCard:
    """How a model reads texts and what its output means.

    Attributes:
        name: the model's name, for reports.
        kind: ``mono`` scores (query, document), ``duo`` compares (query, document, document).
        head: what comes out: one logit; two logits, index 1 relevant; the logits of
            BERT's next-sentence head, of which Birch's checkpoints use index 1 alone, without softmax; t * cosine.
        layout: ``standard`` is ``[CLS] q [SEP] d [SEP]``, for duo ``[CLS] q [SEP] d_i [SEP] d_j [SEP]``; ``cross-bias``
            is ``[CLS] q [SEP] [CLS] d [SEP]``, for duo ``[CLS] q [SEP] [CLS] d_i [SEP] [CLS] d_j [SEP]``.
        max_tokens: most tokens of a sequence, specials among them.
        max_query_tokens: most tokens of the query, with the two specials around it.
        length_rule: ``paper`` fills ``max_tokens``, for duo with half of what the longest query leaves a document;
            ``released`` does as the published codes: mono leaves one token unused, and duo's documents each get half of
            what their query leaves.
        segment_rows: rows of the token type table: two for mono, three for duo; 0 or 1 for models without segments.
            ``cross-bias`` reads the first row alone, so that two do for duo.
        calibration: raw score -> logit.
        first_pass_weight: what the best first-pass score is worth beside the logits, where the model orders better with
            its help (`osrerank.stages.interpolate`, "linear"); 0 where it orders by itself, as the papers' models do.
        prior_share: of a duo model, the share in a pair's logit of the difference of the mono model's, where it orders
            better with their help (`osrerank.stages.duo`); 0 for duoBERT as the paper has it.
        onnx: precision (``int8``, ``fp32``) -> file, relative to the directory.
        biases: for ``cross-bias``, the numbers of `CrossBias`; ``other`` for duo alone.
        provenance: base model, training data, recipe, licence, measures.
    """

    name: str
    head: Head
    kind: Kind = "mono"
    layout: Layout = "standard"
    max_tokens: int = 512
    max_query_tokens: int = 64
    length_rule: LengthRule = "paper"
    segment_rows: int = 2
    calibration: Calibration = field(default_factory=Calibration)
    first_pass_weight: float = 0.0
    prior_share: float = 0.0
    onnx: Mapping[str, str] = field(default_factory=dict)
    biases: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(choices)}")
        if not 3 < self.max_query_tokens < self.max_tokens:
            raise ValueError(f"max_query_tokens is {self.max_query_tokens}; it must be above 3 and below max_tokens")
        if not self.first_pass_weight >= 0:
            raise ValueError(f"first_pass_weight is {self.first_pass_weight}; it must be 0 or above")
        for name, factor in zip(POOLING, self.pool_factors, strict=True):
            if not 1 <= factor < math.inf:
                raise ValueError(f"biases: {name} is {factor}; it must be 1 or above")
        if not 0 <= self.prior_share < 1:
            raise ValueError(f"prior_share is {self.prior_share}; it must be 0 or above and below 1")
        if self.kind == "duo":
            self._check_duo()

    @property
    def pool_factors(self) -> PoolFactors:
        """Pieces of a query and of a document for each of their states."""
        return PoolFactors(*(float(self.biases.get(name, 1.0)) for name in POOLING))

    @property
    def is_antisymmetric(self) -> bool:
        """Whether a duo model's score changes its sign, and nothing else, where the documents change places."""
        return self.kind == "duo" and self.layout == "cross-bias"

    def _check_duo(self) -> None:
        heads = ("cosine",) if self.layout == "cross-bias" else ("logit1", "logits2")
        if self.head not in heads:
            raise ValueError(f"head is {self.head!r}; a duo model has {' or '.join(heads)} in the layout {self.layout}")
        if self.max_tokens < self.max_query_tokens + 6:
            raise ValueError(f"max_tokens is {self.max_tokens}: two documents have no room beside the query")
        if self.layout == "standard" and self.segment_rows == 2:
            fix = "osrerank export --kind duo adds the third"
            raise ValueError(f"segment_rows is 2; a duo model tells query, first and second document apart; {fix}")

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``osrerank.json``; `read_card` reads it back."""
        content = {name: getattr(self, name) for name in self.__slots__ if name != "calibration"}
        calibration = {"scale": self.calibration.scale, "offset": self.calibration.offset}
        return {"version": CARD_VERSION, **content, "calibration": calibration}


def states_of(pieces: int, pool_factor: float) -> int:
    """Return how many states a query or a document of so many pieces gets."""
    return max(1, math.ceil(pieces / pool_factor - SLACK))


def with_pool_factors(card: ModelCard, *, query: float | None = None, document: float | None = None) -> ModelCard:
    """Return a card with other pool factors, without what was measured or fitted at the old ones.

    Args:
        card: the card.
        query: a query's pieces for each of its states; None for what the card says.
        document: the same of a document.

    Raises:
        ConfigError: the layout knows none, or one is below 1.
    """
    old = card.pool_factors
    new = PoolFactors(old.query if query is None else query, old.document if document is None else document)
    if new == old:
        return card
    if card.layout != "cross-bias":
        raise ConfigError("texts are pooled in the layout cross-bias alone", setting="pool_factor")
    kept = {name: value for name, value in card.biases.items() if name not in POOLING}
    provenance = {name: value for name, value in card.provenance.items() if name != "measures"}
    try:
        return replace(card, biases={**kept, **new.for_card()}, calibration=Calibration(), provenance=provenance)
    except ValueError as error:
        raise ConfigError(str(error), setting="pool_factor") from None


def beside_another(query_bias: float | str) -> float | str:
    """Return a mono model's bias of query rows on document columns as a duo model's: less by log 2.

    So the two documents together weigh what the one did, where they are alike: a softmax adds up exponentials.
    """
    return query_bias if isinstance(query_bias, str) else query_bias - math.log(2)


def as_duo(biases: Mapping[str, Any], other: float | str) -> dict[str, Any]:
    """Return a mono model's biases as a duo model's, with the one between the documents."""
    return {**biases, "query": beside_another(biases["query"]), "other": other}


def read_card(directory: Path, *, name: str = "") -> ModelCard:
    """Return the directory's card: its ``osrerank.json``, or what its ``config.json`` says of a mono model.

    Raises:
        ModelLoadError: it is no model that can rerank; the message says why.
    """
    _refuse_unusable(directory)
    file = directory / CARD_FILE if (directory / CARD_FILE).exists() else directory / CONFIG_FILE
    content = read_json(file)
    try:
        card = _from_card(content) if file.name == CARD_FILE else _from_config(content, directory)
        return ModelCard(**{**card, "name": name or card.get("name") or directory.name})
    except (TypeError, ValueError, AttributeError) as error:
        raise ModelLoadError(f"{file}: {error}", model=name or directory.name, path=str(file)) from error


def read_json(file: Path) -> dict[str, Any]:
    """Return a JSON object.

    Raises:
        ModelLoadError: the file is missing or no JSON object.
    """
    try:
        content = json.loads(file.read_bytes())
    except FileNotFoundError as error:
        raise ModelLoadError(f"{file} is missing; a model directory needs it", path=str(file)) from error
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{file} cannot be read as JSON: {error}", path=str(file)) from error
    if not isinstance(content, dict):
        raise ModelLoadError(f"{file} holds no JSON object", path=str(file))
    return content


def padding_id(directory: Path) -> int:
    """Return the id of the padding token, from the directory's ``config.json`` where there is one."""
    config = read_json(directory / CONFIG_FILE) if (directory / CONFIG_FILE).exists() else {}
    return int(config.get("pad_token_id") or 0)


def digest(directory: Path, files: Iterable[str]) -> str:
    """Return the SHA-256 of the named files' names and contents."""
    total = hashlib.sha256()
    for name in sorted(files):
        with (directory / name).open("rb") as opened:
            total.update(f"{name}:{hashlib.file_digest(opened, 'sha256').hexdigest()};".encode())
    return total.hexdigest()


def weight_files(directory: Path) -> list[str]:
    """Return the safetensors files of the directory's own level."""
    return sorted(file.name for file in directory.glob("*.safetensors"))


def parameter_files(directory: Path) -> list[str]:
    """Return what a network's weights are read from: its safetensors, else the graph of its card, fp32 before int8.

    Raises:
        ModelLoadError: there are no safetensors, and the card cannot be read.
    """
    found = weight_files(directory)
    if found or not (directory / CARD_FILE).exists():
        return found
    graphs = read_card(directory).onnx
    return [graphs[precision] for precision in ("fp32", "int8") if precision in graphs][:1]


def _refuse_unusable(directory: Path) -> None:
    if not (directory / TOKENIZER_FILE).exists():
        fix = "save it there with AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        reason = f"{directory} has no {TOKENIZER_FILE}; {fix}"
        raise ModelLoadError(reason, path=str(directory))
    if weight_files(directory) or any(directory.rglob("*.onnx")):
        return
    pickled = next((name for name in PICKLES if (directory / name).exists()), None)
    if pickled:
        fix = "convert it where you trust it: model.save_pretrained(..., safe_serialization=True)"
        reason = f"{directory / pickled} is a pickle, which can run code when it is read; {fix}"
        raise ModelLoadError(reason, path=str(directory / pickled))
    raise ModelLoadError(f"{directory} has neither *.safetensors nor *.onnx files", path=str(directory))


def _from_card(content: dict[str, Any]) -> dict[str, Any]:
    card = dict(content)
    version = card.pop("version", None)
    if version != CARD_VERSION:
        raise ValueError(f"version is {version!r}; this osrerank reads version {CARD_VERSION}")
    card["calibration"] = Calibration(**card.pop("calibration", {}))
    return card


def _from_config(config: dict[str, Any], directory: Path) -> dict[str, Any]:
    found = {
        precision: name
        for precision, names in ONNX_FILES.items()
        if (name := next((name for name in names if (directory / name).exists()), None))
    }
    segment_rows = int(config.get("type_vocab_size", 0))
    return {
        "head": _head(config),
        "max_tokens": _max_tokens(config),
        "segment_rows": segment_rows,
        "onnx": found,
    }


def _head(config: Mapping[str, Any]) -> Head:
    """Return the head that a config describes.

    Raises:
        ValueError: it is not the config of a mono model.
    """
    if "auto_map" in config:
        raise ValueError(
            "auto_map asks for the model's own Python code, which osrerank never runs; export the model to ONNX"
        )
    architecture = next(iter(config.get("architectures") or ["nothing"]))
    if architecture == "BertForNextSentencePrediction":
        return "next-sentence"
    if not architecture.endswith("ForSequenceClassification"):
        fix = "a bi-encoder can be exported with osrerank export --layout cross-bias"
        wanted = "a reranking model is a *ForSequenceClassification or BertForNextSentencePrediction"
        raise ValueError(f"architectures names {architecture}; {wanted}; {fix}")
    labels = len(config["id2label"]) if "id2label" in config else int(config.get("num_labels", 2))
    if labels not in {1, 2}:
        raise ValueError(
            f"the classifier has {labels} labels; a reranking model has 1 (a logit) or 2 (the second is relevant)"
        )
    return "logit1" if labels == 1 else "logits2"


def _max_tokens(config: Mapping[str, Any]) -> int:
    """Return the room for tokens; RoBERTa's kin count positions from the padding id on."""
    positions = int(config.get("max_position_embeddings", 512))
    offset = int(config.get("pad_token_id") or 0) + 1 if "roberta" in str(config.get("model_type")) else 0
    return min(512, positions - offset)
