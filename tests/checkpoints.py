"""Checkpoints in the forms of the papers' years, of tiny random BERTs."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import BertConfig, BertForNextSentencePrediction, BertForSequenceClassification, BertModel

from tests.make_tiny_bert import tokenizer

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
TOKENS = 128
CLASSES = {"classifier": BertForSequenceClassification, "next-sentence": BertForNextSentencePrediction}


def network(head: str = "classifier", seed: int = 1, labels: int = 2) -> Any:
    """Return a random BERT with a head, or without one."""
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=tokenizer().get_vocab_size(), max_position_embeddings=TOKENS, num_labels=labels, **SIZES
    )
    made = CLASSES.get(head, BertModel)(config).eval()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            centre = 1.0 if name.endswith("LayerNorm.weight") else 0.0
            parameter.copy_(centre + 0.3 * torch.randn(parameter.shape))
    return made


def write_vocabulary(folder: Path) -> None:
    """Write the tiny tokenizer as ``vocab.txt``."""
    vocabulary = tokenizer().get_vocab()
    (folder / "vocab.txt").write_text("\n".join(sorted(vocabulary, key=vocabulary.__getitem__)) + "\n", "utf-8")


def expected(made: Any, query: str, text: str) -> list[float]:
    """Return a network's own logits of a query and a text."""
    pieces: Tokenizer = tokenizer()
    encoded = pieces.encode(query, text)
    with torch.no_grad():
        output = made(torch.tensor([encoded.ids]), token_type_ids=torch.tensor([encoded.type_ids]))
    return list(output.logits[0].tolist())


def bert_config(made: Any) -> Mapping[str, Any]:
    """Return a network's ``bert_config.json``."""
    names = (*SIZES, "vocab_size", "max_position_embeddings", "type_vocab_size", "hidden_act")
    return {name: getattr(made.config, name) for name in names}


def write_config(folder: Path, content: Mapping[str, Any], name: str = "config.json") -> None:
    (folder / name).write_text(json.dumps(dict(content)), "utf-8")
