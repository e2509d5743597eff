"""Load models for training: turn a checkpoint into a network with the wanted head, and write it to a directory."""

import json
import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from osrerank._optional import require
from osrerank.errors import ConfigError, ModelLoadError
from osrerank.export.export_model import write_card
from osrerank.export.third_segment import third_row
from osrerank.scoring.backends.networks.bi_encoder import PaddedBiEncoder
from osrerank.scoring.backends.networks.classifier import Classifier
from osrerank.scoring.backends.torch import read_weights
from osrerank.scoring.card import Kind, ModelCard
from osrerank.scoring.card_file import read_card
from osrerank.scoring.checkpoints.convert import NOTICES
from osrerank.scoring.checkpoints.pickled import OLD_NAMES
from osrerank.scoring.inputs import InputBuilder
from osrerank.scoring.model_files import (
    CARD_FILE,
    CONFIG_FILE,
    TOKENIZER_FILE,
    WEIGHTS_FILE,
    read_config,
    tokenizer_file,
)
from osrerank.scoring.modular.description import MODULES_FILE
from osrerank.scoring.modular.tokenizer_settings import TokenizerSettings
from osrerank.scoring.saved_encoder import is_bi_encoder, read_bi_encoder
from osrerank.training.recipes import Recipe
from osrerank.training.weights.bi_encoder import BiEncoderNetwork

SIGMA = 0.02
"""The standard deviation of BERT's new weights, which are drawn from a normal distribution truncated at two of it."""
FRESH = ("classifier.", "pre_classifier.", "head.", "score.", "pooler.", "cls.", "lm_head.")
"""Prefixes of weights that a checkpoint may lack, because heads are trained; they follow the encoder's own prefix."""
TWO_LABELS = {"logits2": "classifier.", "next-sentence": "cls.seq_relationship."}
"""Prefixes of the weights of BERT's two heads with two logits from the pooled [CLS]; the second means relevant."""
TYPE_TABLE = "embeddings.token_type_embeddings.weight"


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Trainee:
    """A model that can be trained.

    Attributes:
        network: the network, which takes `PaddedBatch`'s fields by name and returns logits ``(n, labels)``.
        card: the model card, which says how the model reads texts and what its output means.
        builder: turns texts into sequences, as in scoring.
        config: the content of ``config.json``.
        source: the directory from which the tokenizer and the notices are copied.
        pad_id: the id of the padding token.
    """

    network: nn.Module
    card: ModelCard
    builder: InputBuilder
    config: Mapping[str, Any]
    source: Path
    pad_id: int = 0

    def save(self, directory: Path) -> None:
        """Write the model into a directory that `load_trainee` and the torch backend can read."""
        shutil.copyfile(tokenizer_file(self.source), directory / TOKENIZER_FILE)
        for name in NOTICES:
            if (self.source / name).exists():
                shutil.copyfile(self.source / name, directory / name)
        (directory / CONFIG_FILE).write_text(f"{json.dumps(dict(self.config), indent=2)}\n", encoding="utf-8")
        save_file(weights_of(self.network), directory / WEIGHTS_FILE, metadata={"format": "pt"})
        write_card(directory, self.card)


def load_trainee(source: Path, recipe: Recipe, *, kind: Kind | None = None, name: str = "") -> Trainee:
    """Read a checkpoint and apply the recipe's head, kind and lengths; new weights are drawn by the recipe's seed.

    Args:
        source: a directory with ``config.json``, ``tokenizer.json`` and safetensors: an encoder, a masked language
            model or a reranker; one of ours may have its weights in its graph.
        recipe: the recipe of the training; with an empty ``head`` or ``kind`` the source's is kept.
        kind: the kind that the model must have; None for the recipe's or, if it sets no kind, the source's.
        name: the name for the model's card; empty for the directory's name.

    Raises:
        ModelLoadError: the source cannot be read, or lacks weights of the encoder.
        ConfigError: the recipe asks for a head, kind or loss that the model cannot have.
    """
    torch.manual_seed(recipe.seed)
    card = _card(source, recipe, kind, name or source.name)
    config = read_config(source)
    if card.is_bi_encoder:
        network: nn.Module = _bi_encoder(source, config, card)
    else:
        network, config = _classifier(source, card, recipe)
    if recipe.freeze:
        _freeze(network, recipe.freeze)
    pad_id = int(config.get("pad_token_id") or 0)
    return Trainee(network, card, InputBuilder.load(source, card), config, source, pad_id)


def weights_of(network: nn.Module) -> dict[str, Tensor]:
    """Return the weights under the names that `read_weights` finds in a published checkpoint."""
    if isinstance(network, BiEncoderNetwork):
        weights = network.encoder.bert_weights()
    else:
        weights = dict(network.network.named_parameters()) if isinstance(network, Classifier) else {}
    return {name: tensor.detach().to("cpu", torch.float32).contiguous() for name, tensor in weights.items()}


def _card(source: Path, recipe: Recipe, wanted_kind: Kind | None, name: str) -> ModelCard:
    """Return the card of the model to be trained."""
    present = _present_card(source, name)
    present_kind = present.kind if present and present.kind != "duo" else "cross-encoder"
    kind = wanted_kind or recipe.kind or present_kind
    if kind == "bi-encoder":
        head = "cosine"
        if present is None or not present.is_bi_encoder:
            reason = f"{source} is not a bi-encoder: it has neither a card nor sentence-transformers' files"
            fix = "run osrerank export --pooling, which writes its card"
            raise ConfigError(f"{reason}; {fix}", setting="recipe.kind", source="argument")
        _check_plain(source, present)
    else:
        present = present if present and present.kind == kind else None
        head = recipe.head or (present.head if present else "logits2")
    base = present or ModelCard(name=name, head="logits2")
    config = read_config(source)
    if head == "next-sentence" and config.get("model_type") != "bert":
        reason = f"{source} is a {config.get('model_type')}, and next-sentence is BERT's head: set head=logits2"
        raise ConfigError(reason, setting="recipe.head", source="argument")
    room = int(config.get("max_position_embeddings", 512))
    try:
        return replace(
            base,
            name=name,
            kind=kind,  # type: ignore[arg-type] # the card checks it
            head=head,  # type: ignore[arg-type] # likewise
            max_tokens=min(recipe.max_tokens, room),
            max_query_tokens=_query_tokens(present, recipe),
            length_rule=recipe.length_rule,  # type: ignore[arg-type] # likewise
            segment_rows=_segment_rows(source, kind, config, present),
            onnx={},
            provenance={},
        )
    except ValueError as error:
        raise ConfigError(f"recipe: {error}", setting="recipe", source="argument") from None


def _present_card(source: Path, name: str) -> ModelCard | None:
    """Return the card of a reranker, or of a bi-encoder that sentence-transformers saved; None for a bare encoder."""
    if _is_reranker(source):
        return read_card(source, name=name)
    return read_bi_encoder(source, name).card if is_bi_encoder(source) else None


def _segment_rows(source: Path, kind: str, config: Mapping[str, Any], present: ModelCard | None) -> int:
    """Return how many segments the model reads: one if its tokenizer returns no token types, three for a duo model."""
    rows = int(config.get("type_vocab_size", 2))
    if kind == "duo":
        return max(3, rows)
    gives_types = TokenizerSettings.read(source).gives_token_types
    if present is not None:
        return present.segment_rows
    return rows if gives_types else min(1, rows)


def _check_plain(source: Path, card: ModelCard) -> None:
    """Refuse a bi-encoder whose vectors are other than the normalised state of [CLS], or the mean of all states.

    Raises:
        ModelLoadError: the message names the card's field.
    """
    fields = {"head": card.head == "dot", "pooling": card.pooling not in ("cls", "mean")}
    fields |= {name: bool(getattr(card, name)) for name in ("modules", "dimensions")}
    if field := next((name for name, is_set in fields.items() if is_set), None):
        file = next((file for file in (source / CARD_FILE, source / MODULES_FILE) if file.exists()), source)
        reason = f"{file}: {field} is {card.to_json()[field]!r}, and such bi-encoders cannot be trained"
        fix = "start from a bi-encoder that compares whole [CLS] or mean vectors by their cosine"
        raise ModelLoadError(f"{reason}; {fix}", model=card.name, path=str(source))


def check_loss(card: ModelCard, recipe: Recipe) -> None:
    """Refuse a loss that does not fit the head.

    Raises:
        ConfigError: the loss is pointwise, but the head computes cosines.
    """
    if card.head == "cosine" and recipe.loss == "pointwise":
        reason = "a model that computes cosines learns from lists only: set loss=listwise,draw=list in the recipe"
        raise ConfigError(reason, setting="recipe.loss")


def _query_tokens(present: ModelCard | None, recipe: Recipe) -> int:
    """Return the maximum tokens of a query: the recipe's; for a bi-encoder, the card's, up to ``max_tokens``."""
    if present is None or not present.is_bi_encoder:
        return recipe.max_query_tokens
    return min(present.max_query_tokens, recipe.max_tokens)


def _is_reranker(source: Path) -> bool:
    if (source / CARD_FILE).exists():
        return True
    architecture = next(iter(read_config(source).get("architectures") or [""]))
    return str(architecture).endswith(("ForSequenceClassification", "BertForNextSentencePrediction"))


def _bi_encoder(source: Path, config: Mapping[str, Any], card: ModelCard) -> BiEncoderNetwork:
    if config.get("model_type") != "bert":
        kind = config.get("model_type")
        reason = f"{source / CONFIG_FILE}: model_type is {kind!r}; a bi-encoder to train needs bert"
        raise ModelLoadError(reason, model=card.name, path=str(source))
    try:
        _, weights = read_checkpoint(source)
        return BiEncoderNetwork(PaddedBiEncoder(config, card.pooling).load_bert(weights))
    except (KeyError, RuntimeError) as error:
        reason = f"the weights in {source} do not fit its config: {error}"
        raise ModelLoadError(reason, model=card.name, path=str(source)) from error


def _classifier(source: Path, card: ModelCard, recipe: Recipe) -> tuple[Classifier, dict[str, Any]]:
    """Return a transformers classifier, and its config."""
    config, weights = read_checkpoint(source)
    labels = 1 if card.head == "logit1" else 2
    config.update(
        id2label={str(label): f"LABEL_{label}" for label in range(labels)},
        label2id={f"LABEL_{label}": label for label in range(labels)},
        hidden_dropout_prob=recipe.dropout,
        attention_probs_dropout_prob=recipe.dropout,
    )
    if card.kind == "duo":
        config["type_vocab_size"] = max(3, int(config.get("type_vocab_size", 2)))
        weights = {name: _three_rows(name, tensor, recipe) for name, tensor in weights.items()}
    network = build_network(architecture_of(card), config)
    weights = _with_head(weights, card, source)
    put_weights(network, weights, source)
    if card.kind == "duo" and recipe.third_row == "frozen":
        dict(network.base_model.named_parameters())[TYPE_TABLE].register_hook(_without_third_row)
    return Classifier(network), config_of(network)


def _with_head(weights: dict[str, Tensor], card: ModelCard, source: Path) -> dict[str, Tensor]:
    """Return a reranker's weights, with its trained head renamed to the card's head if the two heads are alike.

    If the trained head cannot be kept, log a warning.
    """
    trained = read_card(source).head if _is_reranker(source) else card.head
    if trained == card.head:
        return weights
    if {trained, card.head} == set(TWO_LABELS) and read_config(source).get("model_type") == "bert":
        old, new = TWO_LABELS[trained], TWO_LABELS[card.head]
        return {name.replace(old, new, 1) if name.startswith(old) else name: tensor for name, tensor in weights.items()}
    logger.warning("the trained head %s of %s is dropped: the recipe asks for %s", trained, source, card.head)
    return weights


def read_checkpoint(source: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return a checkpoint's config, and its weights in fp32.

    Raises:
        ModelLoadError: there is no config, or there are no weights that can be read.
    """
    weights = {name: tensor.float() for name, tensor in read_weights(source).items()}
    if not weights:
        reason = f"{source} has no *.safetensors to start from, nor a graph that osrerank exported"
        raise ModelLoadError(reason, path=str(source))
    return read_config(source), weights


def build_network(architecture: str, config: Mapping[str, Any]) -> Any:
    """Return an untrained network of transformers for a config.

    Args:
        architecture: the name of the network's class in transformers.
        config: the content of ``config.json``.
    """
    transformers = require("transformers", extra="torch")
    settings = {name: value for name, value in config.items() if name not in ("model_type", "num_labels")}
    network_config = transformers.AutoConfig.for_model(config["model_type"], **settings)
    chosen = getattr(transformers, architecture)
    return chosen.from_config(network_config) if architecture.startswith("Auto") else chosen(network_config)


def config_of(network: Any) -> dict[str, Any]:
    """Return the content of a network's ``config.json``."""
    content = json.loads(network.config.to_json_string(use_diff=False))
    return {**content, "architectures": [type(network).__name__]}


def write_encoder(directory: Path, network: Any, source: Path) -> None:
    """Write a transformers network with its tokenizer, as a start for training; it is not yet a reranker."""
    if source != directory:
        shutil.copyfile(tokenizer_file(source), directory / TOKENIZER_FILE)
    (directory / CONFIG_FILE).write_text(f"{json.dumps(config_of(network), indent=2)}\n", encoding="utf-8")
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in network.named_parameters()}
    save_file(weights, directory / WEIGHTS_FILE, metadata={"format": "pt"})


def architecture_of(card: ModelCard) -> str:
    """Return the name of the class in transformers that a card's model has."""
    is_pair = card.head == "next-sentence"
    return "BertForNextSentencePrediction" if is_pair else "AutoModelForSequenceClassification"


def put_weights(network: Any, weights: Mapping[str, Tensor], source: Path) -> None:
    """Load weights into a network; a head that they lack or that has another size is initialised.

    Raises:
        ModelLoadError: weights of the encoder are missing or of another shape.
    """
    prefix = f"{network.base_model_prefix}."
    prefixed_weights = dict(_prefixed(weights, prefix))
    state = dict(network.named_parameters())
    lacking = [
        name
        for name, tensor in state.items()
        if name not in prefixed_weights or prefixed_weights[name].shape != tensor.shape
    ]
    foreign = [name for name in lacking if not name.removeprefix(prefix).startswith(FRESH)]
    if foreign:
        reason = f"{source} lacks weights that its config asks for, or has others: {', '.join(sorted(foreign)[:3])}"
        raise ModelLoadError(reason, path=str(source))
    with torch.no_grad():
        for name, tensor in state.items():
            if name not in lacking:
                tensor.copy_(prefixed_weights[name])
            elif name.lower().endswith("norm.weight"):
                tensor.fill_(1.0)
            else:
                _start(tensor)


def _start(tensor: Tensor) -> None:
    """Initialise a weight as BERT does: matrices from a truncated normal distribution, vectors with 0."""
    if tensor.ndim > 1:
        nn.init.trunc_normal_(tensor, std=SIGMA, a=-2 * SIGMA, b=2 * SIGMA)
    else:
        tensor.zero_()


def _prefixed(weights: Mapping[str, Tensor], prefix: str) -> list[tuple[str, Tensor]]:
    """Return the weights under a classifier's names, whether a bare encoder or another head's model has them."""
    is_bare = not any(name.startswith(prefix) for name in weights)
    pairs = []
    for name, tensor in weights.items():
        for old, new in OLD_NAMES.items():
            name = name.replace(old, new)  # noqa: PLW2901 - the name's newer form
        is_head = name.startswith(("classifier.", "score.", "cls.", "lm_head."))
        pairs.append((f"{prefix}{name}" if is_bare and not is_head else name, tensor))
    return pairs


def _three_rows(name: str, tensor: Tensor, recipe: Recipe) -> Tensor:
    """Return a token type table with a third row (`osrerank.export.third_segment`), and other weights unchanged."""
    if not name.endswith(TYPE_TABLE) or len(tensor) > 2:
        return tensor
    return third_row(tensor, "copy" if recipe.third_row == "copy" else "zeros")


def _without_third_row(gradient: Tensor) -> Tensor:
    return torch.cat([gradient[:2], torch.zeros_like(gradient[2:])])


def _freeze(network: nn.Module, parameters: str) -> None:
    """Keep the embedding tables as they are.

    Raises:
        ConfigError: ``what`` is not ``embeddings``.
    """
    if parameters != "embeddings":
        raise ConfigError(f"recipe: freeze is {parameters!r}; it must be embeddings, or empty", setting="recipe.freeze")
    for module in network.modules():
        if isinstance(module, nn.Embedding):
            module.requires_grad_(requires_grad=False)
