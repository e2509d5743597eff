"""Random models with BERT's tokenizer: speed and rounding do not depend on what the weights have learnt."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import transformers

from osrerank.export.export_model import write_card
from osrerank.scoring.card import CrossBias, Joining, ModelCard
from osrerank.scoring.model_files import CARD_FILE, read_card
from tools.gpu.measure import Shape

SHAPES: dict[str, Shape] = {
    "tiny": (64, 2, 4, 128),
    "minilm-l6": (384, 6, 12, 1536),
    "base": (768, 12, 12, 3072),
    "large": (1024, 24, 16, 4096),
}
SPREAD = 2.0
"""Standard deviation of what a matrix makes of a state of norm 1 a number: enough for scores that differ."""
SPECIALS = ("unk", "sep", "pad", "cls", "mask")


@dataclass(frozen=True, slots=True)
class Family:
    """An architecture, or a layout of BERT's weights.

    Attributes:
        kind: ``model_type`` in transformers.
        architecture: its class.
        changes: fields of the config.
        card: what the card says, for layouts; none for what the config says.
    """

    kind: str
    architecture: str
    changes: dict[str, Any] = field(default_factory=dict)
    card: ModelCard | None = None


def _duo(**changes: Any) -> ModelCard:
    return ModelCard("made", "cosine", kind="duo", **changes)


ONE_LABEL = "BertForSequenceClassification"
FAMILIES = {
    "bert, one logit": Family("bert", ONE_LABEL),
    "bert, two logits": Family("bert", ONE_LABEL, {"num_labels": 2}),
    "bert, next sentence": Family("bert", "BertForNextSentencePrediction"),
    "roberta": Family("roberta", "RobertaForSequenceClassification", {"pad_token_id": 1, "max_position_embeddings": 514}),
    "xlm-roberta": Family(
        "xlm-roberta", "XLMRobertaForSequenceClassification", {"pad_token_id": 1, "max_position_embeddings": 514}
    ),
    "electra": Family("electra", "ElectraForSequenceClassification"),
    "modernbert": Family(
        "modernbert", "ModernBertForSequenceClassification", {"vocab_size": 30522, "pad_token_id": 0, "cls_token_id": 101,
        "sep_token_id": 102, "bos_token_id": 101, "eos_token_id": 102, "max_position_embeddings": 512},
    ),
    "bert, duo": Family(
        "bert", ONE_LABEL, {"type_vocab_size": 3}, ModelCard("made", "logit1", kind="duo", segment_rows=3)
    ),
    "cross-bias": Family("bert", ONE_LABEL, {}, ModelCard("made", "cosine", layout="cross-bias")),
    "cross-bias, both sides open": Family(
        "bert", ONE_LABEL, {}, ModelCard("made", "cosine", layout="cross-bias", cross_bias=CrossBias(-2.0, -1.0))
    ),
    "cross-bias, pooled": Family(
        "bert", ONE_LABEL, {}, ModelCard("made", "cosine", layout="cross-bias", cross_bias=CrossBias(pool_factor=2.5))
    ),
    "cross-bias, duo": Family("bert", ONE_LABEL, {}, _duo(layout="cross-bias")),
    "joined, no layer": Family(
        "bert", ONE_LABEL, {}, ModelCard("made", "cosine", layout="joined", joining=Joining(0, pooling="mean", rows="all"))
    ),
    "joined, one layer, [CLS]": Family("bert", ONE_LABEL, {}, ModelCard("made", "cosine", layout="joined")),
    "joined, two layers, all rows": Family(
        "bert", ONE_LABEL, {}, ModelCard("made", "cosine", layout="joined", joining=Joining(2, -4.0, rows="all", pooling="mean"))
    ),
}  # fmt: skip


def make(folder: Path, shape: Shape, tokenizer: Path, family: Family | None = None) -> Path:
    """Write a random model whose scores differ, unless it is there already.

    Args:
        folder: of the model.
        shape: hidden, layers, heads, inner.
        tokenizer: BERT's ``tokenizer.json``.
        family: which model; a BERT with one logit if not given.
    """
    if (folder / "model.safetensors").exists():
        return folder
    family = family or FAMILIES["bert, one logit"]
    torch.manual_seed(1)
    network = getattr(transformers, family.architecture)(_config(shape, family))
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if weight.dim() == 2 and "embeddings" not in name:
                weight.normal_(std=SPREAD / weight.shape[1] ** 0.5)
    network.save_pretrained(folder)
    if family.card is not None:
        write_card(folder, family.card)
    transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tokenizer),
        model_max_length=512,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **{f"{name}_token": f"[{name.upper()}]" for name in SPECIALS},
    ).save_pretrained(folder)
    return folder


def _config(shape: Shape, family: Family) -> Any:
    hidden, layers, heads, inner = shape
    fields = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads}
    fields |= {"intermediate_size": inner, "num_labels": 1, "vocab_size": 30522, **family.changes}
    return transformers.AutoConfig.for_model(family.kind, **fields)


def with_card(source: Path, folder: Path, **changes: Any) -> Path:
    """Return a copy of a model's directory, its files linked, with another card."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in source.rglob("*"):
        target = folder / file.relative_to(source)
        if file.is_file() and not target.exists() and file.name != CARD_FILE:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(file.resolve())
    write_card(folder, replace(read_card(source), **changes))
    return folder

