"""Random cross-encoders of modules, as sentence-transformers saves them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.make_tiny_bert import tokenizer

SPECIALS = {"pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}
WIDTH = 32
SHAPE = {"hidden_size": WIDTH, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 48}
KINDS = {
    "bert": {"max_position_embeddings": 512},
    "modernbert": {**SPECIALS, "local_attention": 16},
    "xlm-roberta": {"max_position_embeddings": 514, "type_vocab_size": 1, "pad_token_id": 0},
}
QUERY = "what causes low blood pressure"
TEXTS = (
    "low blood pressure is caused by the heart",
    "heat flow " * 30,
    "a wing",
    "the search engine made a good document of the score and the rank " * 4,
    "blood " * 20,
    "they would still see the boundary layer",
)


def base(folder: Path, kind: str, *, most_tokens: int = 128, **changes: Any) -> Path:
    """Have transformers save a random encoder, with the tiny tokenizer."""
    fields = {**SHAPE, **KINDS[kind], "vocab_size": tokenizer().get_vocab_size(), **changes}
    torch.manual_seed(7)
    network = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(kind, **fields))
    randomise(network)
    network.save_pretrained(folder)
    segments = ["token_type_ids"] if kind == "bert" else []
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer(),
        model_max_length=most_tokens,
        model_input_names=["input_ids", *segments, "attention_mask"],
        **{f"{name}_token": f"[{name.upper()}]" for name in ("unk", "sep", "pad", "cls", "mask")},
    ).save_pretrained(folder)
    return folder


def randomise(network: torch.nn.Module) -> None:
    """Make weights so large that scores differ."""
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if "norm" in name.lower():
                parameter.add_(0.1 * torch.randn(parameter.shape))
            else:
                parameter.normal_(std=0.25)


def ettins_head() -> list[Any]:
    """Pooling, Dense, LayerNorm, Dense, as the rerankers of Ettin have them."""
    base_modules, modules = libraries()
    score = {"activation_function": None, "module_output_name": "scores"}
    return [
        modules.Pooling(WIDTH, "cls"),
        base_modules.Dense(WIDTH, WIDTH, bias=False, activation_function=torch.nn.GELU()),
        modules.LayerNorm(WIDTH),
        base_modules.Dense(WIDTH, 1, **score),
    ]


def libraries() -> tuple[Any, Any]:
    """Return sentence-transformers' packages of modules, of a version that has modular cross-encoders."""
    pytest.importorskip("sentence_transformers", minversion="5.4")
    return (
        pytest.importorskip("sentence_transformers.base.modules"),
        pytest.importorskip("sentence_transformers.sentence_transformer.modules"),
    )


def saved(folder: Path, kind: str = "bert", head: Sequence[Any] | None = None, **options: Any) -> Path:
    """Have sentence-transformers save a random encoder and a head as a cross-encoder.

    Args:
        folder: to make.
        kind: a key of `KINDS`.
        head: modules; Ettin's if not given.
        options: ``most_tokens`` and of the encoder's config; ``prompts``, ``default_prompt_name`` and ``activation_fn``
            are the cross-encoder's.
    """
    base_modules, _ = libraries()
    model_options = {
        name: options.pop(name) for name in ("prompts", "default_prompt_name", "activation_fn") if name in options
    }
    source = base(folder.with_name(f"{folder.name}-base"), kind, **options)
    modules = [base_modules.Transformer(str(source)), *(ettins_head() if head is None else head)]
    for module in modules[1:]:
        randomise(module)
    encoder: Any = pytest.importorskip("sentence_transformers").CrossEncoder
    encoder(modules=modules, device="cpu", **model_options).save_pretrained(str(folder), create_model_card=False)
    return folder


def expected(folder: Path, texts: Sequence[str] = TEXTS, query: str = QUERY) -> Any:
    """Return sentence-transformers' own logits of a query and texts ``(n, labels)``."""
    model: Any = pytest.importorskip("sentence_transformers").CrossEncoder(str(folder), device="cpu")
    pairs = [(query, text) for text in texts]
    logits = model.predict(pairs, activation_fn=torch.nn.Identity(), show_progress_bar=False)
    return logits.reshape(len(texts), -1)
