"""A small BERT that ranks without training: its weights are set by hand to find a query's words in a text.

In the first layer each piece of the query attends to the same piece in the text, or to [CLS] where the text has none;
in the second, [CLS] takes the mean of what was found, rare pieces counting more. That is enough for what the real
checkpoints must show (`osrerank.scoring.checkpoints.self_check`), in eight megabytes that are made in a second.
"""

import gzip
import io
import json
import math
from collections import Counter
from typing import Any

import torch
from safetensors.torch import save
from tokenizers import Tokenizer
from transformers import BertConfig, BertForMaskedLM, BertForNextSentencePrediction, BertForSequenceClassification

from tests.servers import ROOT

HIDDEN, CODE = 64, 54
RARE, TEXT, FOUND, FIRST = 54, 56, 58, 60
"""Channels, each with the next one as its negative, so that layer norms change little: how rare a piece is, whether it
is of the text, whether it was found, whether it is [CLS]."""
TOKENIZER = ROOT / "osrerank" / "models" / "e5-small" / "tokenizer.json"
CORPUS = ROOT / "osrerank" / "data" / "squad" / "corpus.jsonl.gz"
CLASSES = {
    "classifier": BertForSequenceClassification,
    "next-sentence": BertForNextSentencePrediction,
    "encoder": BertForMaskedLM,
}


def repository(head: str) -> dict[str, bytes]:
    """Return the files of a checkpoint as the hub has the papers' own: a pickle of tensors and a list of pieces.

    Args:
        head: ``classifier``, ``next-sentence``, or ``encoder``, which has safetensors and tokenizer.json instead.
    """
    network = CLASSES[head](_config())
    with torch.no_grad():
        _set(network)
    config = {**network.config.to_dict(), "architectures": [type(network).__name__]}
    described = {"config.json": json.dumps(config).encode()}
    state = {name: tensor.contiguous() for name, tensor in network.state_dict().items()}
    if head == "encoder":
        shared = {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}
        tensors = {name: tensor.clone() for name, tensor in state.items() if name not in shared}
        return described | {"model.safetensors": save(tensors), "tokenizer.json": TOKENIZER.read_bytes()}
    pickled = io.BytesIO()
    torch.save(state, pickled)
    pieces = Tokenizer.from_file(str(TOKENIZER)).get_vocab()
    vocabulary = "\n".join(sorted(pieces, key=pieces.__getitem__)) + "\n"
    settings = json.dumps({"do_lower_case": True}).encode()
    return described | {
        "pytorch_model.bin": pickled.getvalue(),
        "vocab.txt": vocabulary.encode(),
        "tokenizer_config.json": settings,
    }


def _config() -> BertConfig:
    vocabulary_size = Tokenizer.from_file(str(TOKENIZER)).get_vocab_size()
    return BertConfig(
        vocab_size=vocabulary_size, hidden_size=HIDDEN, num_hidden_layers=2, num_attention_heads=1, intermediate_size=32
    )


def _set(network: Any) -> None:
    """Set all weights; what is not named here is zero, or one in a layer norm."""
    torch.manual_seed(1)
    for name, parameter in network.named_parameters():
        parameter.fill_(1.0 if name.endswith("LayerNorm.weight") else 0.0)
    bert = network.bert
    _set_embeddings(bert.embeddings)
    first, second = bert.encoder.layer
    for layer in (first, second):
        attention = layer.attention.self
        attention.key.weight.copy_(torch.eye(HIDDEN))
        _pair(layer.attention.output.dense.weight, FOUND, FOUND, 2.0)
    scale = math.sqrt(HIDDEN)  # attention divides by it
    ask = first.attention.self.query
    ask.weight[:CODE, :CODE].copy_(0.45 * scale * torch.eye(CODE))
    ask.bias[TEXT], ask.bias[FIRST] = 10 * scale, 10 * scale
    _pair(first.attention.self.value.weight, FOUND, TEXT, 0.5)
    first.attention.self.value.bias[FOUND], first.attention.self.value.bias[FOUND + 1] = 0.5, -0.5
    ask = second.attention.self.query
    ask.bias[RARE], ask.bias[TEXT], ask.bias[FIRST] = 1.5 * scale, -10 * scale, -10 * scale
    _pair(second.attention.self.value.weight, FOUND, FOUND, 0.5)
    if bert.pooler is None:
        return
    bert.pooler.dense.weight[0, FOUND] = 1.0
    bert.pooler.dense.bias[0] = -0.7
    head = network.classifier if hasattr(network, "classifier") else network.cls.seq_relationship
    head.weight[0, 0], head.weight[1, 0] = -6.0, 6.0


def _set_embeddings(embeddings: Any) -> None:
    """Give each piece a code of as many ones as minus ones, and say how rare it is."""
    words = embeddings.word_embeddings.weight
    order = torch.rand(words.shape[0], CODE).argsort(dim=1)
    words[:, :CODE] = torch.where(order < CODE // 2, 1.0, -1.0)
    rare = _rarity()
    words[:, RARE], words[:, RARE + 1] = rare, -rare
    pieces = Tokenizer.from_file(str(TOKENIZER)).get_vocab()
    words[pieces["[CLS]"], FIRST], words[pieces["[CLS]"], FIRST + 1] = 4.0, -4.0
    types = embeddings.token_type_embeddings.weight
    types[0, TEXT], types[0, TEXT + 1], types[1, TEXT], types[1, TEXT + 1] = -1.0, 1.0, 1.0, -1.0


def _rarity() -> torch.Tensor:
    """Return for each piece from -2, in every paragraph of the sample, to 2, in none."""
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    tokenizer.no_truncation()
    with gzip.open(CORPUS, "rt", encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in lines]
    counts = Counter(doc_id for encoding in tokenizer.encode_batch(texts) for doc_id in set(encoding.ids))
    rare = torch.full((tokenizer.get_vocab_size(),), 2.0)
    for word_piece, count in counts.items():
        rare[word_piece] = 2 - 4 * math.log(count) / math.log(len(texts))
    return rare


def _pair(weight: torch.Tensor, output: int, source: int, value: float) -> None:
    """Let a channel and its negative follow another pair."""
    weight[output, source] = value
    weight[output + 1, source + 1] = value
