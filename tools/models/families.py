"""Random checkpoints of the families of encoders, drawn so that int8 can do to them what it does to trained ones.

With transformers' own initialisation all documents have nearly the same logit, and no precision changes such an order.
So here

- matrices have the standard deviation `SPREAD` / sqrt(inputs), so that layers do not multiply rounding errors, and
  those that carry what was attended to `READING` / sqrt(inputs), so that [CLS] depends on the texts;
- a share of `CHANNELS` of each layer's norms is `LARGE` times as large as the rest, as trained encoders have outliers;
- the head reads the direction in which the [CLS] rows of example texts differ most, and gives their logits a standard
  deviation of `LOGITS_SPREAD`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer

from osrerank.scoring.card_file import read_card
from osrerank.scoring.inputs import InputBuilder, Tokens

SPREAD, READING, CHANNELS, LARGE, LOGITS_SPREAD = 0.5, 2.0, 1 / 96, 8.0, 2.0
TOKENIZER = Path(__file__).parents[2] / "osrerank" / "models" / "e5-small" / "tokenizer.json"
Shape = tuple[int, int, int, int]
"""Hidden, layers, heads, inner."""
SHAPES: Mapping[str, Shape] = {"tiny": (64, 2, 4, 128), "minilm-l6": (384, 6, 12, 1536), "base": (768, 12, 12, 3072)}
Text = tuple[str, str]
"""A query and a document."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """An architecture of transformers.

    Attributes:
        kind: ``model_type`` in transformers.
        changes: fields of its config, as published checkpoints have them.
    """

    kind: str
    changes: Mapping[str, Any] = field(default_factory=dict)


FROM_PADDING = {"pad_token_id": 1, "max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
DISENTANGLED = {
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_buckets": 256,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "position_biased_input": False,
    "max_relative_positions": -1,
    "type_vocab_size": 0,
}
FAMILIES: Mapping[str, Architecture] = {
    "BERT": Architecture("bert"),
    "RoBERTa": Architecture("roberta", FROM_PADDING),
    "XLM-R": Architecture("xlm-roberta", FROM_PADDING),
    "ELECTRA": Architecture("electra"),
    "DeBERTa-v3": Architecture("deberta-v2", DISENTANGLED),
    "DeBERTa-v2": Architecture("deberta-v2", {**DISENTANGLED, "conv_kernel_size": 3}),
}
"""DeBERTa-v2 here is as its large models are, with a convolution in the first layer."""


def make(
    folder: Path, family: Architecture, shape: Shape, texts: Sequence[Text], *, tokenizer: Path = TOKENIZER
) -> Path:
    """Write a random classifier with one logit, as the module says.

    Args:
        folder: to write.
        family: which architecture.
        shape: hidden, layers, heads, inner.
        texts: examples that the head is made for.
        tokenizer: a ``tokenizer.json`` in BERT's manner.
    """
    torch.manual_seed(1)
    config = _config(family, shape, Tokenizer.from_file(str(tokenizer)).get_vocab_size())
    network = transformers.AutoModelForSequenceClassification.from_config(config).eval()
    _draw(network, shape[0])
    network.save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(tokenizer.read_bytes())
    _fit_head(network, sequences(folder, texts))
    network.save_pretrained(folder)
    return folder


def load(folder: Path) -> Any:
    """Return transformers' own network."""
    return transformers.AutoModelForSequenceClassification.from_pretrained(folder, local_files_only=True).eval()


def sequences(folder: Path, texts: Sequence[Text]) -> list[Tokens]:
    """Return the sequences that osrerank makes for a checkpoint."""
    builder = InputBuilder.load(folder, read_card(folder))
    made = []
    for query, document in texts:
        pieces = builder.query(query)
        made.append(builder.mono(pieces, builder.documents([document], pieces)[0]))
    return made


def logit(network: Any, tokens: Tokens) -> float:
    """Return transformers' logit of one sequence."""
    given = {"input_ids": tokens.ids, "token_type_ids": tokens.segments}
    if getattr(network.config, "type_vocab_size", 0) < 2:
        del given["token_type_ids"]
    with torch.inference_mode():
        logits = network(**{name: torch.from_numpy(array[None]) for name, array in given.items()}).logits
    return float(logits[0, 0])


def _config(family: Architecture, shape: Shape, pieces: int) -> Any:
    hidden, layers, heads, inner = shape
    fields = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads, "num_labels": 1}
    fields |= {"intermediate_size": inner, "embedding_size": hidden // 2, "pooler_hidden_size": hidden}
    return transformers.AutoConfig.for_model(family.kind, **fields, vocab_size=pieces, **family.changes)


def _draw(network: Any, hidden: int) -> None:
    large = torch.randperm(hidden)[: max(1, round(CHANNELS * hidden))]
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if weight.dim() > 1 and "embeddings" not in name:
                gain = READING if "value" in name or "attention.output" in name else SPREAD
                weight.normal_(std=gain / weight[0].numel() ** 0.5)
            elif name.endswith("LayerNorm.weight") and "layer." in name:
                weight[large] *= LARGE


def _fit_head(network: Any, examples: Sequence[Tokens]) -> None:
    *_, head = (module for module in network.classifier.modules() if isinstance(module, torch.nn.Linear))
    read: list[torch.Tensor] = []
    hook = head.register_forward_hook(lambda _module, inputs, _output: read.append(inputs[0]))
    for tokens in examples:
        logit(network, tokens)
    hook.remove()
    rows = torch.cat(read)  # (examples, hidden)
    centre = rows.mean(0)
    direction = torch.linalg.svd(rows - centre, full_matrices=False).Vh[0]
    direction *= LOGITS_SPREAD / ((rows - centre) @ direction).std()
    with torch.no_grad():
        head.weight.copy_(direction[None])
        head.bias.fill_(-float(centre @ direction))
