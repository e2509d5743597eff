"""Encoders of transformers' families that a training starts from, without a head."""

from pathlib import Path

import pytest
import torch
import transformers

from osrerank.training.recipes import Recipe
from osrerank.training.weights.models import load_trainee
from tests.make_tiny_bert import tokenizer

SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
FAMILIES = {
    "modernbert": {"pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3},
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "electra": {"embedding_size": 24},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_bare_encoder_gets_a_new_head(tmp_path: Path, family: str) -> None:
    fields = {**SHAPE, **FAMILIES[family], "vocab_size": tokenizer().get_vocab_size()}
    encoder = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(family, **fields))
    encoder.save_pretrained(tmp_path)
    tokenizer().save(str(tmp_path / "tokenizer.json"))
    trainee = load_trainee(tmp_path, Recipe(max_tokens=80))
    assert trainee.card.head == "logits2"
    named = dict(trainee.network.named_parameters())
    norms = [tensor for name, tensor in named.items() if name.endswith("head.norm.weight")]
    assert all(torch.equal(tensor, torch.ones_like(tensor)) for tensor in norms)
    assert len(norms) == (family == "modernbert")
