"""Create random checkpoints of encoder families that react to int8 like trained ones.

With transformers' own initialisation, all documents have nearly the same logit, so that their order says nothing about
a precision. Here,

- matrices have the standard deviation `GAIN` / sqrt(inputs), so that layers do not amplify rounding errors. Those of
  attention's values and outputs have `ATTENTION_GAIN` / sqrt(inputs), so that [CLS] depends on the texts.
- in each layer's norms, the share `OUTLIER_SHARE` of weights is `OUTLIER_FACTOR` times as large as the others, as
  trained encoders have outliers.
- the head projects [CLS] onto the direction of the largest variance over example texts, and gives their logits the
  standard deviation `LOGITS_SD`.
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

GAIN = 0.5
ATTENTION_GAIN = 2.0
OUTLIER_SHARE = 1 / 96
OUTLIER_FACTOR = 8.0
LOGITS_SD = 2.0
TOKENIZER = Path(__file__).parents[2] / "osrerank" / "models" / "e5-small" / "tokenizer.json"
Shape = tuple[int, int, int, int]
"""Hidden size, layers, heads, inner size."""
SHAPES: Mapping[str, Shape] = {"tiny": (64, 2, 4, 128), "minilm-l6": (384, 6, 12, 1536), "base": (768, 12, 12, 3072)}
Text = tuple[str, str]
"""A query and a document."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """An architecture of transformers.

    Attributes:
        kind: ``model_type`` in transformers.
        changes: fields of the configuration, as in published checkpoints.
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
"""DeBERTa-v2 has a convolution in the first layer, as its large models have."""


def make(
    folder: Path, family: Architecture, shape: Shape, texts: Sequence[Text], *, tokenizer: Path = TOKENIZER
) -> Path:
    """Write a random classifier with one logit; return its folder.

    Args:
        folder: the folder to write.
        family: the architecture.
        shape: the sizes.
        texts: the example texts to which the head is fitted.
        tokenizer: a ``tokenizer.json`` like BERT's.
    """
    torch.manual_seed(1)
    config = _create_config(family, shape, Tokenizer.from_file(str(tokenizer)).get_vocab_size())
    network = transformers.AutoModelForSequenceClassification.from_config(config).eval()
    _initialise(network, shape[0])
    network.save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(tokenizer.read_bytes())
    _fit_head(network, sequences(folder, texts))
    network.save_pretrained(folder)
    return folder


def load(folder: Path) -> Any:
    """Load a checkpoint with transformers."""
    return transformers.AutoModelForSequenceClassification.from_pretrained(folder, local_files_only=True).eval()


def sequences(folder: Path, texts: Sequence[Text]) -> list[Tokens]:
    """Return osrerank's token sequences of texts for a checkpoint."""
    builder = InputBuilder.load(folder, read_card(folder))
    encoded = []
    for query, document in texts:
        query_tokens = builder.tokenise_query(query)
        encoded.append(builder.build_mono(query_tokens, builder.tokenise_documents([document], query_tokens)[0]))
    return encoded


def logit(network: Any, tokens: Tokens) -> float:
    """Return transformers' logit of one sequence."""
    inputs = {"input_ids": tokens.ids, "token_type_ids": tokens.segments}
    if getattr(network.config, "type_vocab_size", 0) < 2:
        del inputs["token_type_ids"]
    with torch.inference_mode():
        logits = network(**{name: torch.from_numpy(array[None]) for name, array in inputs.items()}).logits
    return float(logits[0, 0])


def _create_config(family: Architecture, shape: Shape, vocabulary_size: int) -> Any:
    hidden, layers, heads, inner = shape
    fields = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads, "num_labels": 1}
    fields |= {"intermediate_size": inner, "embedding_size": hidden // 2, "pooler_hidden_size": hidden}
    return transformers.AutoConfig.for_model(family.kind, **fields, vocab_size=vocabulary_size, **family.changes)


def _initialise(network: Any, hidden: int) -> None:
    outliers = torch.randperm(hidden)[: max(1, round(OUTLIER_SHARE * hidden))]
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if weight.dim() > 1 and "embeddings" not in name:
                gain = ATTENTION_GAIN if "value" in name or "attention.output" in name else GAIN
                weight.normal_(std=gain / weight[0].numel() ** 0.5)
            elif name.endswith("LayerNorm.weight") and "layer." in name:
                weight[outliers] *= OUTLIER_FACTOR


def _fit_head(network: Any, examples: Sequence[Tokens]) -> None:
    *_, head = (module for module in network.classifier.modules() if isinstance(module, torch.nn.Linear))
    head_inputs: list[torch.Tensor] = []
    hook = head.register_forward_hook(lambda _module, inputs, _output: head_inputs.append(inputs[0]))
    for tokens in examples:
        logit(network, tokens)
    hook.remove()
    rows = torch.cat(head_inputs)  # (examples, hidden)
    centre = rows.mean(0)
    direction = torch.linalg.svd(rows - centre, full_matrices=False).Vh[0]
    direction *= LOGITS_SD / ((rows - centre) @ direction).std()
    with torch.no_grad():
        head.weight.copy_(direction[None])
        head.bias.fill_(-float(centre @ direction))
