"""ModernBERT's packed forward pass and its graph against transformers' own, over windows' edges and long sequences."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from osrerank.errors import InferenceError
from osrerank.scoring.card import ModelCard
from osrerank.scoring.inputs import Tokens

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from osrerank.scoring.backends.networks.attention import (  # noqa: E402 - imports torch
    Attention,
    Bounds,
    PaddedAttention,
    VarlenAttention,
    choose_attention,
)
from osrerank.scoring.backends.networks.classifier import Classifier  # noqa: E402 - likewise
from osrerank.scoring.backends.networks.engine import PackedEngine, PaddedEngine, on_device  # noqa: E402 - likewise
from osrerank.scoring.backends.networks.load import load_packed, obstacle  # noqa: E402 - likewise
from osrerank.scoring.backends.networks.modern_bert.shape import ModernBertShape  # noqa: E402 - likewise
from tests.varlen import Varlen, attentions  # noqa: E402 - likewise

CPU = torch.device("cpu")
CARD = ModelCard("made", "logit1")
VOCABULARY = 300
WINDOW = 8
LENGTHS = (70, 3, 9, 10, 17, 33, 64, 2, 1)
"""Around a window's edge, two windows, blocks of two windows, and beyond."""
SPECIALS = {"pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}


def made(**changes: object) -> torch.nn.Module:
    """A random ModernBERT whose scores differ, with windows of eight places to either side."""
    shape = {"hidden_size": 48, "num_hidden_layers": 4, "num_attention_heads": 3, "intermediate_size": 40}
    fields = {**shape, **SPECIALS, "vocab_size": VOCABULARY, "local_attention": 2 * WINDOW, "num_labels": 1, **changes}
    config = transformers.ModernBertConfig(**fields)
    config.architectures = ["ModernBertForSequenceClassification"]
    torch.manual_seed(7)
    network = transformers.ModernBertForSequenceClassification(config).eval()
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if "norm" not in name:
                parameter.normal_(std=0.3)
            elif name.endswith("bias"):
                parameter.normal_(std=0.1)
    return network


def sequences(lengths: Sequence[int], seed: int = 1) -> list[Tokens]:
    draw = np.random.default_rng(seed)
    return [Tokens(draw.integers(1, VOCABULARY, size=length), np.zeros(length, dtype=np.int64)) for length in lengths]


def logits(
    network: torch.nn.Module, batch: Sequence[Tokens], attention: Attention, dtype: torch.dtype = torch.float32
) -> np.ndarray:
    config = network.config.to_dict()
    assert obstacle(config, CARD) == ""
    return PackedEngine(load_packed(network.state_dict(), config, CARD, attention=attention, dtype=dtype), CPU)(batch)


def reference(network: torch.nn.Module, batch: Sequence[Tokens]) -> np.ndarray:
    return PaddedEngine(Classifier(network), CPU, 0)(batch)


CHANGES = [
    {},
    {"num_labels": 2, "classifier_pooling": "mean"},
    {"num_hidden_layers": 3, "classifier_bias": True, "norm_bias": True, "attention_bias": True, "mlp_bias": True},
    {"global_attn_every_n_layers": 2, "num_hidden_layers": 1, "local_rope_theta": None},
]


@attentions
@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_classifiers_equal_transformers(attention: Callable[[], Attention], changes: dict) -> None:
    network, batch = made(**changes), sequences(LENGTHS)
    expected = reference(network, batch)
    assert np.ptp(expected, axis=0).min() > 0.1
    np.testing.assert_allclose(logits(network, batch, attention()), expected, atol=1e-4, rtol=0)
    alone = np.concatenate([logits(network, [tokens], attention()) for tokens in batch[:4]])
    np.testing.assert_allclose(alone, expected[:4], atol=1e-4, rtol=0)


@pytest.mark.parametrize("window", [1, 4, 8, 16, 100])
def test_blocks_see_what_a_mask_lets_through(window: int) -> None:
    lengths = np.array(LENGTHS, dtype=np.int32)
    offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    states = torch.randn(3, int(lengths.sum()), 2, 8, generator=torch.Generator().manual_seed(1))
    rows = Bounds(offsets, lengths)
    found, expected = (
        way(*states, rows, rows, window=window) for way in (PaddedAttention(), VarlenAttention(Varlen()))
    )
    torch.testing.assert_close(found, expected)


def test_the_kernel_gets_windows_where_they_matter_and_first_rows_at_the_end() -> None:
    kernel, network = Varlen(), made()
    logits(network, sequences((20, 30)), VarlenAttention(kernel))
    near, whole = (WINDOW, WINDOW), (-1, -1)
    assert kernel.windows == [whole, near, near, whole]
    assert [call["rows"] for call in kernel.calls] == [50, 50, 50, 2]
    short = Varlen()
    logits(network, sequences((WINDOW + 1, 3)), VarlenAttention(short))
    assert short.windows == [whole] * 4


def test_the_kernel_itself_takes_what_the_network_gives() -> None:
    """On the device ``meta``, which computes shapes and types alone."""
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    network = made()
    packed = load_packed(
        network.state_dict(), network.config.to_dict(), CARD, attention=VarlenAttention(varlen), dtype=torch.bfloat16
    ).to("meta")
    arrays = packed.pack(sequences(LENGTHS))
    outputs = packed(on_device(arrays, torch.device("meta")), arrays[-1])
    assert (outputs.shape, outputs.dtype) == ((len(LENGTHS), 1), torch.float32)


def test_without_windows_in_the_kernel_attention_is_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (9, 0))
    cuda = torch.device("cuda")
    found, reason = choose_attention(cuda, torch.bfloat16, 64, windowed=True)
    assert (found.name, reason) == ("packed", "")
    monkeypatch.setattr(varlen, "varlen_attn", lambda query, key, value: None)
    found, reason = choose_attention(cuda, torch.bfloat16, 64, windowed=True)
    assert (found.name, "within a window" in reason) == ("padded", True)
    assert choose_attention(cuda, torch.bfloat16, 64)[0].name == "packed"


@attentions
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits_are_near(attention: Callable[[], Attention], dtype: torch.dtype) -> None:
    network, batch = made(), sequences(LENGTHS)
    fine, coarse = (logits(network, batch, attention(), kind) for kind in (torch.float32, dtype))
    assert 0 < np.median(np.abs(coarse - fine)) < 0.02 * np.ptp(fine)


def test_what_is_beyond_the_model_is_refused() -> None:
    network = made(max_position_embeddings=32)
    for tokens, reason in (((33,), "position id is 32"), ((4,), "token id is 300")):
        batch = sequences(tokens)
        batch[0].ids[-1] = 300 if "token" in reason else 1
        with pytest.raises(InferenceError, match=reason):
            logits(network, batch, PaddedAttention())


def test_configs_of_transformers_5_are_read() -> None:
    """Its names, written out: this environment's transformers may be 4."""
    older = made().config.to_dict()
    kinds = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
    newer = {name: value for name, value in older.items() if not name.endswith(("rope_theta", "n_layers"))}
    newer |= {"layer_types": kinds, "num_hidden_layers": 4}
    newer["rope_parameters"] = {
        "full_attention": {"rope_type": "default", "rope_theta": 160000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    }
    assert ModernBertShape.from_config(newer) == ModernBertShape.from_config(older)
    assert ModernBertShape.from_config(newer).windows == (None, WINDOW, WINDOW, None)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hidden_activation": "silu"}, "hidden_activation is silu"),
        ({"classifier_activation": "relu"}, "classifier_activation is relu"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rotations are yarn"),
        ({"layer_types": ["chunked_attention"]}, "layer_types has chunked_attention"),
        ({"local_attention": 1}, "local_attention is below 2"),
        ({"architectures": ["ModernBertForMaskedLM"]}, "architecture is ModernBertForMaskedLM"),
    ],
)
def test_what_it_cannot_compute_it_says(changes: dict, reason: str) -> None:
    assert reason in obstacle(made().config.to_dict() | changes, CARD)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_8192_tokens_equal_transformers() -> None:
    """Ettin's smallest shape."""
    network = made(
        hidden_size=256, num_hidden_layers=7, num_attention_heads=4, intermediate_size=384, local_attention=128
    )
    batch = sequences((8192, 700, 65, 129))
    expected = reference(network, batch)
    np.testing.assert_allclose(logits(network, batch, PaddedAttention()), expected, atol=1e-4, rtol=0)
