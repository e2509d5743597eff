"""Random models with BERT's tokenizer: speed and rounding do not depend on what the weights have learnt."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

from osrerank.export.export_model import write_card
from osrerank.scoring.card import CrossBias, Joining, ModelCard
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


def _layout(layout: Any, **changes: Any) -> Family:
    return Family("bert", ONE_LABEL, {}, ModelCard("made", "cosine", layout=layout, **changes))


ONE_LABEL = "BertForSequenceClassification"
FROM_PADDING = {"pad_token_id": 1, "max_position_embeddings": 514}
BERTS_TOKENS = {"pad_token_id": 0, "cls_token_id": 101, "sep_token_id": 102, "bos_token_id": 101, "eos_token_id": 102}
ALL_ROWS: dict[str, Any] = {"rows": "all", "pooling": "mean"}
FAMILIES = {
    "bert, one logit": Family("bert", ONE_LABEL),
    "bert, two logits": Family("bert", ONE_LABEL, {"num_labels": 2}),
    "bert, next sentence": Family("bert", "BertForNextSentencePrediction"),
    "roberta": Family("roberta", "RobertaForSequenceClassification", FROM_PADDING),
    "xlm-roberta": Family("xlm-roberta", "XLMRobertaForSequenceClassification", FROM_PADDING),
    "electra": Family("electra", "ElectraForSequenceClassification"),
    "modernbert": Family("modernbert", "ModernBertForSequenceClassification", BERTS_TOKENS),
    "bert, duo": Family(
        "bert", ONE_LABEL, {"type_vocab_size": 3}, ModelCard("made", "logit1", kind="duo", segment_rows=3)
    ),
    "cross-bias": _layout("cross-bias"),
    "cross-bias, both sides open": _layout("cross-bias", cross_bias=CrossBias(-2.0, -1.0)),
    "cross-bias, pooled": _layout("cross-bias", cross_bias=CrossBias(pool_factor=2.5)),
    "cross-bias, duo": _layout("cross-bias", kind="duo"),
    "joined, no layer": _layout("joined", joining=Joining(0, **ALL_ROWS)),
    "joined, one layer, [CLS]": _layout("joined"),
    "joined, two layers, all rows": _layout("joined", joining=Joining(2, -4.0, **ALL_ROWS)),
}


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
    segments = [] if family.kind == "modernbert" else ["token_type_ids"]  # which its forward does not take
    transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tokenizer),
        model_max_length=512,
        model_input_names=["input_ids", *segments, "attention_mask"],
        **{f"{name}_token": f"[{name.upper()}]" for name in SPECIALS},
    ).save_pretrained(folder)
    return folder


def _config(shape: Shape, family: Family) -> Any:
    hidden, layers, heads, inner = shape
    fields = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads}
    fields |= {"intermediate_size": inner, "num_labels": 1, "vocab_size": 30522, **family.changes}
    return transformers.AutoConfig.for_model(family.kind, **fields)
