"""Load a checkpoint to train it, with the head and kind that the recipe sets, and save the trained network."""

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

from osrerank._bad_value import describe_bad_value
from osrerank._optional import require
from osrerank.errors import ConfigError, ModelLoadError
from osrerank.export.export_model import write_card
from osrerank.export.third_segment import ThirdRow, add_third_row
from osrerank.scoring.backends.networks.bi_encoder import PaddedBiEncoder
from osrerank.scoring.backends.networks.classifier import Classifier
from osrerank.scoring.backends.torch import read_weights
from osrerank.scoring.card import Head, Kind, ModelCard
from osrerank.scoring.card_file import read_card
from osrerank.scoring.checkpoints.convert import NOTICES
from osrerank.scoring.inputs import InputBuilder
from osrerank.scoring.model_files import (
    CARD_FILE,
    CONFIG_FILE,
    TOKENIZER_FILE,
    WEIGHTS_FILE,
    copy_existing,
    current_name,
    read_config,
    tokenizer_file,
)
from osrerank.scoring.modular.description import MODULES_FILE
from osrerank.scoring.modular.tokenizer_settings import TokenizerSettings
from osrerank.scoring.saved_encoder import is_bi_encoder, read_bi_encoder
from osrerank.training.recipes import Recipe
from osrerank.training.weights.bi_encoder import BiEncoderNetwork

INITIAL_STD = 0.02
"""The standard deviation of new weights, which are drawn from a normal distribution truncated at two deviations."""
HEAD_PREFIXES = ("classifier.", "pre_classifier.", "head.", "score.", "pooler.", "cls.", "lm_head.")
"""The prefixes of a head's weights. Weights with these prefixes that a checkpoint lacks are initialised."""
TOP_LEVEL_HEAD_PREFIXES = ("classifier.", "score.", "cls.", "lm_head.")
"""The prefixes of heads outside the encoder. In a classifier, ``bert.`` precedes all other names, even ``pooler.``."""
TWO_LOGIT_HEADS = {"logits2": "classifier.", "next-sentence": "cls.seq_relationship."}
"""The prefix of each head's weights in BERT. Both heads compute two logits from the pooled [CLS] state. The second one
stands for relevant."""
TOKEN_TYPE_TABLE = "embeddings.token_type_embeddings.weight"  # noqa: S105 - the name of a weight
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Trainee:
    """A model that can be trained.

    Attributes:
        network: the network. Its keyword arguments are `PaddedBatch`'s fields, and it returns logits ``(n, labels)``.
        card: the model card, which determines how texts are tokenised and what the output means.
        builder: tokenises texts and joins them into sequences, as in scoring.
        config: the content of ``config.json``.
        source: the directory from which the tokenizer and the licence files are copied.
        pad_id: the padding token's id.
    """

    network: Classifier | BiEncoderNetwork
    card: ModelCard
    builder: InputBuilder
    config: Mapping[str, Any]
    source: Path
    pad_id: int = 0

    def save(self, directory: Path) -> None:
        """Write the model into a directory that `load_trainee` and the torch backend can read."""
        shutil.copyfile(tokenizer_file(self.source), directory / TOKENIZER_FILE)
        copy_existing(self.source, directory, NOTICES)
        (directory / CONFIG_FILE).write_text(f"{json.dumps(dict(self.config), indent=2)}\n", encoding="utf-8")
        save_file(collect_weights(self.network), directory / WEIGHTS_FILE, metadata={"format": "pt"})
        write_card(directory, self.card)


def load_trainee(source: Path, recipe: Recipe, *, kind: Kind | None = None, name: str = "") -> Trainee:
    """Load a checkpoint with the recipe's head, kind and lengths. New weights depend only on the recipe's seed.

    Args:
        source: a directory with ``config.json``, ``tokenizer.json`` and safetensors, of an encoder, a masked language
            model or a reranker; or a model that osrerank exported, even if only its graph contains the weights.
        recipe: the training recipe. If its ``head`` or ``kind`` is empty, the source's is kept.
        kind: the model's kind. If None, the recipe's is used.
        name: the name in the model's card. If empty, it is the directory's name.

    Raises:
        ModelLoadError: the source cannot be read, or an encoder weight is missing.
        ConfigError: the recipe sets a head, kind or loss that the model cannot have.
    """
    torch.manual_seed(recipe.seed)
    card = _create_card(source, recipe, kind, name or source.name)
    config = read_config(source)
    if card.is_bi_encoder:
        network: Classifier | BiEncoderNetwork = _load_bi_encoder(source, config, card)
    else:
        network, config = _load_classifier(source, card, recipe)
    if recipe.freeze == "embeddings":
        for module in network.modules():
            if isinstance(module, nn.Embedding):
                module.requires_grad_(requires_grad=False)
    pad_id = int(config.get("pad_token_id") or 0)
    return Trainee(network, card, InputBuilder.load(source, card), config, source, pad_id)


def collect_weights(network: Classifier | BiEncoderNetwork) -> dict[str, Tensor]:
    """Return the fp32 weights on the CPU, under the names of published checkpoints."""
    if isinstance(network, BiEncoderNetwork):
        weights = network.encoder.export_bert_weights()
    else:
        weights = dict(network.network.named_parameters())
    return {name: tensor.detach().to("cpu", torch.float32).contiguous() for name, tensor in weights.items()}


def _create_card(source: Path, recipe: Recipe, kind: Kind | None, name: str) -> ModelCard:
    """Return the card of the model to train: the source's card, with the kind, head and lengths that are requested."""
    source_card = _read_source_card(source, name)
    # unless a kind is requested, training on from a duo model makes a cross-encoder
    default_kind: Kind = source_card.kind if source_card and source_card.kind != "duo" else "cross-encoder"
    new_kind = kind or recipe.kind or default_kind
    if new_kind == "bi-encoder":
        head: Head = "cosine"  # the only head of a bi-encoder that can be trained
        if source_card is None or not source_card.is_bi_encoder:
            reason = (
                f"{source} does not say how it pools vectors: it has neither a card nor sentence-transformers' files"
            )
            fix = f"run osrerank export {source} OUTPUT --pooling cls (or mean), and start from OUTPUT"
            raise ConfigError(f"{reason}; {fix}", setting="recipe.kind", source="argument")
        _check_trainable(source, source_card)
    else:
        if source_card and source_card.kind != new_kind:
            source_card = None  # its head and lengths do not fit the new kind
        head = recipe.head or (source_card.head if source_card else "logits2")
    config = read_config(source)
    if head == "next-sentence" and config.get("model_type") != "bert":
        reason = f"{source} is a {config.get('model_type')}, but next-sentence is a BERT head; set head=logits2"
        raise ConfigError(reason, setting="recipe.head", source="argument")
    max_positions = int(config.get("max_position_embeddings", 512))
    try:
        base_card = source_card or ModelCard(name=name, head="logits2")
        return replace(
            base_card,
            name=name,
            kind=new_kind,
            head=head,
            max_tokens=min(recipe.max_tokens, max_positions),
            max_query_tokens=_choose_max_query_tokens(source_card, recipe),
            length_rule=recipe.length_rule,
            segment_rows=_count_token_types(source, new_kind, config, source_card),
            onnx={},
            provenance={},
        )
    except ValueError as error:
        raise ConfigError(f"recipe: {error}", setting="recipe", source="argument") from None


def _read_source_card(source: Path, name: str) -> ModelCard | None:
    """Return the card of a reranker or a sentence-transformers bi-encoder, or None for a bare encoder."""
    if _is_reranker(source):
        return read_card(source, name=name)
    return read_bi_encoder(source, name).card if is_bi_encoder(source) else None


def _count_token_types(source: Path, kind: str, config: Mapping[str, Any], source_card: ModelCard | None) -> int:
    """Return the number of token types.

    A duo model has at least 3. Another model has the number in the card of its source. A source without a card has the
    number in its config file, or at most 1 if its tokenizer returns no types.
    """
    n_types = int(config.get("type_vocab_size", 2))
    if kind == "duo":
        return max(3, n_types)
    uses_types = TokenizerSettings.read(source).uses_token_types
    if source_card is not None:
        return source_card.segment_rows
    return n_types if uses_types else min(1, n_types)


def _check_trainable(source: Path, card: ModelCard) -> None:
    """Raise `ModelLoadError` unless a bi-encoder compares normalised [CLS] states or normalised mean states."""
    is_unsupported = {
        "head": card.head == "dot",
        "pooling": card.pooling not in ("cls", "mean"),
        "modules": bool(card.modules),
        "dimensions": bool(card.dimensions),
    }
    unsupported_fields = [field for field, value in is_unsupported.items() if value]
    if unsupported_fields:
        field = unsupported_fields[0]
        file = next((file for file in (source / CARD_FILE, source / MODULES_FILE) if file.exists()), source)
        reason = f"{file}: {field} is {card.to_json()[field]!r}, which cannot be trained"
        fix = "start from a bi-encoder with [CLS] or mean pooling, cosine similarity and nothing after the pooling"
        raise ModelLoadError(f"{reason}; {fix}", model=card.name, path=str(source))


def check_loss(card: ModelCard, recipe: Recipe) -> None:
    """Raise `ConfigError` if the loss is pointwise but the head computes cosines."""
    if card.head == "cosine" and recipe.loss == "pointwise":
        reason = "a model that computes cosines learns only from lists; set loss=listwise,draw=list in the recipe"
        raise ConfigError(reason, setting="recipe.loss")


def _choose_max_query_tokens(source_card: ModelCard | None, recipe: Recipe) -> int:
    """Return the maximum query length: the recipe's or, for a bi-encoder, its card's, up to ``max_tokens``."""
    if source_card is None or not source_card.is_bi_encoder:
        return recipe.max_query_tokens
    return min(source_card.max_query_tokens, recipe.max_tokens)


def _is_reranker(source: Path) -> bool:
    """Return whether a checkpoint has a card of osrerank's, or an architecture with a classification head."""
    if (source / CARD_FILE).exists():
        return True
    architecture = next(iter(read_config(source).get("architectures") or [""]))
    return str(architecture).endswith(("ForSequenceClassification", "BertForNextSentencePrediction"))


def _load_bi_encoder(source: Path, config: Mapping[str, Any], card: ModelCard) -> BiEncoderNetwork:
    model_type = config.get("model_type")
    if model_type != "bert":
        reason = f"{source / CONFIG_FILE}: model_type is {model_type!r}; only bi-encoders of type bert can be trained"
        raise ModelLoadError(reason, model=card.name, path=str(source))
    try:
        _, weights = read_checkpoint(source)
        return BiEncoderNetwork(PaddedBiEncoder(config, card.pooling).load_bert(weights))
    except (KeyError, RuntimeError) as error:
        reason = f"the weights in {source} do not fit its config; save the model again ({describe_bad_value(error)})"
        raise ModelLoadError(reason, model=card.name, path=str(source)) from error


def _load_classifier(source: Path, card: ModelCard, recipe: Recipe) -> tuple[Classifier, dict[str, Any]]:
    """Return a cross-encoder or duo model with the card's head, and the content of its ``config.json``."""
    config, weights = read_checkpoint(source)
    n_labels = 1 if card.head == "logit1" else 2
    config.update(
        id2label={str(label): f"LABEL_{label}" for label in range(n_labels)},
        label2id={f"LABEL_{label}": label for label in range(n_labels)},
        hidden_dropout_prob=recipe.dropout,
        attention_probs_dropout_prob=recipe.dropout,
    )
    if card.kind == "duo":
        config["type_vocab_size"] = max(3, int(config.get("type_vocab_size", 2)))
        third_row_init: ThirdRow = "copy" if recipe.third_row == "copy" else "zeros"  # a frozen row has zeros
        for name, tensor in weights.items():
            if name.endswith(TOKEN_TYPE_TABLE) and len(tensor) <= 2:  # has no third row
                weights[name] = add_third_row(tensor, third_row_init)
    network = build_network(choose_network_class(card), config)
    load_weights(network, _rename_head(weights, card, source), source)
    if card.kind == "duo" and recipe.third_row == "frozen":
        dict(network.base_model.named_parameters())[TOKEN_TYPE_TABLE].register_hook(_zero_third_row)
    return Classifier(network), build_config_json(network)


def _rename_head(weights: dict[str, Tensor], card: ModelCard, source: Path) -> dict[str, Tensor]:
    """Rename a head's trained weights for an equivalent head, such as ``classifier.`` to ``cls.seq_relationship.``.

    If the source's head and the card's head are not equivalent, log a warning. Training then starts with a new head.
    """
    if not _is_reranker(source):
        return weights
    trained_head = read_card(source).head
    if trained_head == card.head:
        return weights
    if are_equivalent(trained_head, card.head) and read_config(source).get("model_type") == "bert":
        old_prefix = TWO_LOGIT_HEADS[trained_head]
        new_prefix = TWO_LOGIT_HEADS[card.head]
        renamed = {}
        for name, tensor in weights.items():
            is_head = name.startswith(old_prefix)
            renamed[name.replace(old_prefix, new_prefix, 1) if is_head else name] = tensor
        return renamed
    logger.warning("the trained head %s of %s is dropped: the recipe sets head=%s", trained_head, source, card.head)
    return weights


def read_classifier_head(source: Path) -> str | None:
    """Return the head of a trained cross-encoder or duo model, or None for an encoder."""
    card = read_card(source) if _is_reranker(source) else None
    return None if card is None or card.is_encoder else card.head


def are_equivalent(head: str, other_head: str) -> bool:
    """Return whether both heads compute the same scores from the same weights."""
    return head == other_head or {head, other_head} == set(TWO_LOGIT_HEADS)


def read_checkpoint(source: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return a checkpoint's config, and its weights in fp32.

    Raises:
        ModelLoadError: the config or the weights are missing or cannot be read.
    """
    weights = {name: tensor.float() for name, tensor in read_weights(source).items()}
    if not weights:
        reason = f"{source} has neither *.safetensors nor a graph that osrerank exported"
        raise ModelLoadError(f"{reason}; start from a directory with weights", path=str(source))
    return read_config(source), weights


def build_network(class_name: str, config: Mapping[str, Any]) -> Any:
    """Build an untrained transformers network from the content of a ``config.json``."""
    transformers = require("transformers", extra="torch")
    settings = {name: value for name, value in config.items() if name not in ("model_type", "num_labels")}
    network_config = transformers.AutoConfig.for_model(config["model_type"], **settings)
    network_type = getattr(transformers, class_name)
    return network_type.from_config(network_config) if class_name.startswith("Auto") else network_type(network_config)


def build_config_json(network: Any) -> dict[str, Any]:
    """Return the content of a network's ``config.json``."""
    content = json.loads(network.config.to_json_string(use_diff=False))
    return {**content, "architectures": [type(network).__name__]}


def write_encoder(directory: Path, network: Any, source: Path) -> None:
    """Write a transformers network and the source's tokenizer as a checkpoint that training can start from."""
    if source != directory:
        shutil.copyfile(tokenizer_file(source), directory / TOKENIZER_FILE)
    (directory / CONFIG_FILE).write_text(f"{json.dumps(build_config_json(network), indent=2)}\n", encoding="utf-8")
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in network.named_parameters()}
    save_file(weights, directory / WEIGHTS_FILE, metadata={"format": "pt"})


def choose_network_class(card: ModelCard) -> str:
    """Return the name of the transformers class for a card's head."""
    is_next_sentence = card.head == "next-sentence"
    return "BertForNextSentencePrediction" if is_next_sentence else "AutoModelForSequenceClassification"


def load_weights(network: Any, weights: Mapping[str, Tensor], source: Path) -> None:
    """Load weights into a network. A head that is missing or differs in shape is initialised.

    Raises:
        ModelLoadError: an encoder weight is missing or differs in shape.
    """
    prefix = f"{network.base_model_prefix}."
    named_weights = _normalise_names(weights, prefix)
    parameters = dict(network.named_parameters())
    initialised_names = [
        name
        for name, tensor in parameters.items()
        if name not in named_weights or named_weights[name].shape != tensor.shape
    ]
    missing_encoder_weights = [
        name for name in initialised_names if not name.removeprefix(prefix).startswith(HEAD_PREFIXES)
    ]
    if missing_encoder_weights:
        names = ", ".join(sorted(missing_encoder_weights)[:3])
        reason = f"{source} lacks weights of the shape that its config requires ({names}); save the model again"
        raise ModelLoadError(reason, path=str(source))
    with torch.no_grad():
        for name, tensor in parameters.items():
            if name not in initialised_names:
                tensor.copy_(named_weights[name])
            elif name.lower().endswith("norm.weight"):
                tensor.fill_(1.0)
            elif tensor.ndim > 1:
                nn.init.trunc_normal_(tensor, std=INITIAL_STD, a=-2 * INITIAL_STD, b=2 * INITIAL_STD)
            else:
                tensor.zero_()


def _normalise_names(weights: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the weights under the names that a classifier has for them.

    ``embeddings.LayerNorm.gamma``, a name from TensorFlow, becomes ``bert.embeddings.LayerNorm.weight``.
    """
    is_bare_encoder = not any(name.startswith(prefix) for name in weights)
    named_weights = {}
    for name, tensor in weights.items():
        is_head = name.startswith(TOP_LEVEL_HEAD_PREFIXES)
        full_name = f"{prefix}{name}" if is_bare_encoder and not is_head else name
        named_weights[current_name(full_name)] = tensor
    return named_weights


def _zero_third_row(gradient: Tensor) -> Tensor:
    """Return the gradient of a token type table with zeros in the third row, so that this row is never trained."""
    return torch.cat([gradient[:2], torch.zeros_like(gradient[2:])])
