"""The packed forward pass against transformers' own, and against a bi-encoder's padded module; then ModernBERT's.

Each is computed twice: with attention on a padded grid, as the CPU does it, and through the arguments of the CUDA
kernel, with a stand-in that computes the same thing densely.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from osrerank.errors import InferenceError
from osrerank.scoring.card import ModelCard, Pooling
from osrerank.scoring.card_file import read_card
from osrerank.scoring.inputs import Tokens, pad
from osrerank.scoring.json_file import read_json

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from osrerank.scoring.backends.networks.attention import (  # noqa: E402 - imports torch
    Attention,
    Bounds,
    PackedAttention,
    PaddedAttention,
    choose_attention,
)
from osrerank.scoring.backends.networks.bi_encoder import PaddedBiEncoder  # noqa: E402 - likewise
from osrerank.scoring.backends.networks.classifier import Classifier  # noqa: E402 - likewise
from osrerank.scoring.backends.networks.engine import PackedEngine, PaddedEngine, copy_to_device  # noqa: E402 - likewise
from osrerank.scoring.backends.networks.load import load_packed, unsupported_reason  # noqa: E402 - likewise
from osrerank.scoring.backends.torch import read_weights  # noqa: E402 - likewise
from osrerank.scoring.modular.modern_bert import ModernBertShape  # noqa: E402 - likewise
from tests.varlen import Varlen, attentions  # noqa: E402 - likewise

DATA = Path(__file__).parents[1] / "data"
DIRECTORIES = {"cross-encoder": DATA / "tiny-bert-one-label", "bi-encoder": DATA / "tiny-bert-bi-encoder"}
CPU = torch.device("cpu")
LENGTHS = (512, 3, 17, 64, 64, 200, 2)


def sequences(lengths: Sequence[int], vocabulary: int, *, segments: int = 2) -> list[Tokens]:
    """Random tokens; the segments are halves or thirds of a sequence."""
    draw = np.random.default_rng(1)
    return [
        Tokens(draw.integers(1, vocabulary, size=length), np.sort(np.arange(length) % segments)) for length in lengths
    ]


def logits(
    network: torch.nn.Module,
    config: dict,
    card: ModelCard,
    batch: Sequence[Tokens],
    attention: Callable[[], Attention] = PaddedAttention,
) -> np.ndarray:
    packed = load_packed(network.state_dict(), config, card, attention=attention(), dtype=torch.float32)
    return PackedEngine(packed, CPU)(batch)


def committed(
    directory: Path, attention: Attention, dtype: torch.dtype = torch.float32, card: ModelCard | None = None
) -> torch.nn.Module:
    """Return the packed network of a committed model, with its own card or another."""
    weights, config = read_weights(directory), read_json(directory / "config.json")
    return load_packed(weights, config, card or read_card(directory), attention=attention, dtype=dtype)


def reference(network: torch.nn.Module, batch: Sequence[Tokens], pad_id: int = 0) -> np.ndarray:
    return PaddedEngine(Classifier(network), CPU, pad_id)(batch)


def made(kind: str, architecture: str, **changes: object) -> torch.nn.Module:
    """A random model of a published architecture; weights wide enough that scores differ."""
    shape = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6, "intermediate_size": 96}
    config = transformers.AutoConfig.for_model(kind, **{**shape, "vocab_size": 300, **changes})
    config.architectures = [architecture]
    torch.manual_seed(7)
    network = getattr(transformers, architecture)(config).eval()
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if "LayerNorm" not in name:
                parameter.normal_(std=0.15)
    return network


@attentions
@pytest.mark.parametrize(
    ("kind", "architecture", "changes"),
    [
        ("bert", "BertForSequenceClassification", {"num_labels": 1}),
        ("bert", "BertForSequenceClassification", {"num_labels": 2, "type_vocab_size": 3}),
        ("bert", "BertForSequenceClassification", {"num_labels": 1, "hidden_act": "gelu_new"}),
        ("bert", "BertForSequenceClassification", {"num_labels": 1, "hidden_act": "relu", "num_hidden_layers": 1}),
        ("bert", "BertForNextSentencePrediction", {}),
        ("roberta", "RobertaForSequenceClassification", {"num_labels": 1, "type_vocab_size": 1}),
        ("xlm-roberta", "XLMRobertaForSequenceClassification", {"num_labels": 2, "type_vocab_size": 1}),
    ],
)
def test_packed_classifiers_equal_transformers(
    attention: Callable[[], Attention], kind: str, architecture: str, changes: dict
) -> None:
    positions = {"max_position_embeddings": 514, "pad_token_id": 1} if kind != "bert" else {}
    network = made(kind, architecture, **positions, **changes)
    config = network.config.to_dict() | {"architectures": [architecture]}
    card = ModelCard("made", "logit1")
    assert unsupported_reason(config, card) == ""
    batch = [
        Tokens(np.where(tokens.ids == config["pad_token_id"], 2, tokens.ids), tokens.segments)
        for tokens in sequences(LENGTHS, 300, segments=max(2, config["type_vocab_size"]))
    ]
    packed_logits = logits(network, config, card, batch, attention)
    expected = reference(network, batch, config["pad_token_id"])
    assert np.ptp(expected, axis=0).min() > 0.1
    np.testing.assert_allclose(packed_logits, expected, atol=1e-4, rtol=0)


def padded_vectors(directory: Path, pooling: Pooling, batch: Sequence[Tokens]) -> np.ndarray:
    network = PaddedBiEncoder(read_json(directory / "config.json"), pooling).load_bert(read_weights(directory))
    inputs = pad(batch)
    ids, mask = (torch.from_numpy(part) for part in (inputs.input_ids, inputs.attention_mask))
    with torch.inference_mode():
        return network.encode(ids, mask).numpy()


@attentions
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_a_packed_bi_encoder_equals_the_padded_module(attention: Callable[[], Attention], pooling: Pooling) -> None:
    directory = DIRECTORIES["bi-encoder"]
    card = ModelCard("tiny", "cosine", kind="bi-encoder", pooling=pooling)
    batch = [Tokens(sequence.ids, np.zeros_like(sequence.ids)) for sequence in sequences((*LENGTHS, 2), 278)]
    packed = committed(directory, attention(), card=card)
    expected = padded_vectors(directory, pooling, batch)
    engine = PackedEngine(packed, CPU)
    np.testing.assert_allclose(engine(batch), expected, atol=1e-5, rtol=0)
    np.testing.assert_allclose(engine(batch[::-1])[::-1], expected, atol=1e-5, rtol=0)  # each keeps its place


@pytest.mark.parametrize("kind", DIRECTORIES)
def test_the_attention_kernel_accepts_the_networks_tensors(kind: str) -> None:
    """On the device ``meta``, which computes shapes and types alone."""
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    packed = committed(DIRECTORIES[kind], PackedAttention(varlen), torch.bfloat16).to("meta")
    arrays = packed.pack(sequences(LENGTHS, 278))
    outputs = packed(copy_to_device(arrays, torch.device("meta")), arrays[-1])
    assert (len(outputs), outputs.dtype) == (len(LENGTHS), torch.float32)


def test_the_last_layer_of_a_classifier_computes_first_rows_only() -> None:
    kernel = Varlen()
    network = made("bert", "BertForSequenceClassification", num_labels=1)
    config = network.config.to_dict()
    logits(network, config, ModelCard("made", "logit1"), sequences((20, 9), 300), lambda: PackedAttention(kernel))
    assert [call["rows"] for call in kernel.calls] == [29, 29, 2]
    assert [call["columns"] for call in kernel.calls] == [29, 29, 29]


@attentions
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", DIRECTORIES)
def test_scores_in_16_bits_are_near_those_in_fp32(
    attention: Callable[[], Attention], dtype: torch.dtype, kind: str
) -> None:
    networks = (committed(DIRECTORIES[kind], attention(), exactness) for exactness in (torch.float32, dtype))
    fine, coarse = (PackedEngine(network, CPU)(sequences(LENGTHS, 278)) for network in networks)
    assert coarse.dtype == np.float32
    difference = np.abs(coarse - fine).max()
    assert 0 < difference < 0.05 * np.ptp(fine) + 0.05


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        (Tokens(np.array([2, 278]), np.array([0, 1])), "token id is 278.*0 to 277"),
        (Tokens(np.array([2, 5]), np.array([0, 2])), "segment id is 2.*0 to 1"),
        (Tokens(np.full(513, 5), np.zeros(513, dtype=np.int64)), "position id is 512.*0 to 511"),
        (Tokens(np.array([-1, 5]), np.array([0, 1])), "token id"),
    ],
)
def test_token_ids_beyond_the_embedding_tables_are_refused(tokens: Tokens, reason: str) -> None:
    packed = committed(DIRECTORIES["cross-encoder"], PaddedAttention())
    with pytest.raises(InferenceError, match=reason):
        packed.pack([tokens])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_bert_large_equals_transformers() -> None:
    shape = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
    config = transformers.BertConfig(**shape, num_labels=2)
    torch.manual_seed(5)
    network = transformers.BertForSequenceClassification(config).eval()
    with torch.no_grad():
        network.classifier.weight.normal_(std=0.5)
    batch = sequences((512, 60, 5), config.vocab_size)
    expected = reference(network, batch)
    architecture = {"architectures": ["BertForSequenceClassification"]}
    packed_logits = logits(network, config.to_dict() | architecture, ModelCard("large", "logits2"), batch)
    assert np.ptp(expected, axis=0).min() > 1e-3
    np.testing.assert_allclose(packed_logits, expected, atol=1e-4, rtol=0)


CARD = ModelCard("made", "logit1")
VOCABULARY = 300
WINDOW = 8
AROUND = (70, 3, 9, 10, 17, 33, 64, 2, 1)
"""Around a window's edge, two windows, blocks of two windows, and beyond."""
SPECIALS = {"pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}


def modern(**changes: object) -> torch.nn.Module:
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


def windowed(lengths: Sequence[int]) -> list[Tokens]:
    return sequences(lengths, VOCABULARY, segments=1)


def modern_logits(network: torch.nn.Module, batch: Sequence[Tokens], attention: Attention) -> np.ndarray:
    assert unsupported_reason(network.config.to_dict(), CARD) == ""
    return logits(network, network.config.to_dict(), CARD, batch, lambda: attention)


CHANGES = [
    {},
    {"num_labels": 2, "classifier_pooling": "mean"},
    {"num_hidden_layers": 3, "classifier_bias": True, "norm_bias": True, "attention_bias": True, "mlp_bias": True},
    {"global_attn_every_n_layers": 2, "num_hidden_layers": 1, "local_rope_theta": None},
]


@attentions
@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_modern_berts_equal_transformers(attention: Callable[[], Attention], changes: dict) -> None:
    network, batch = modern(**changes), windowed(AROUND)
    expected = reference(network, batch)
    assert np.ptp(expected, axis=0).min() > 0.1
    np.testing.assert_allclose(modern_logits(network, batch, attention()), expected, atol=1e-4, rtol=0)
    alone = np.concatenate([modern_logits(network, [tokens], attention()) for tokens in batch[:4]])
    np.testing.assert_allclose(alone, expected[:4], atol=1e-4, rtol=0)


@pytest.mark.parametrize("window", [1, 4, 8, 16, 100])
def test_local_attention_in_blocks_equals_attention_with_a_mask(window: int) -> None:
    lengths = np.array(AROUND, dtype=np.int32)
    offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    states = torch.randn(3, int(lengths.sum()), 2, 8, generator=torch.Generator().manual_seed(1))
    rows = Bounds(offsets, lengths)
    found, expected = (
        way(*states, rows, rows, window=window) for way in (PaddedAttention(), PackedAttention(Varlen()))
    )
    torch.testing.assert_close(found, expected)


def test_the_kernel_gets_windows_for_local_layers_and_first_rows_for_the_last_layer() -> None:
    kernel, network = Varlen(), modern()
    modern_logits(network, windowed((20, 30)), PackedAttention(kernel))
    near, whole = (WINDOW, WINDOW), (-1, -1)
    assert kernel.windows == [whole, near, near, whole]
    assert [call["rows"] for call in kernel.calls] == [50, 50, 50, 2]
    short = Varlen()
    modern_logits(network, windowed((WINDOW + 1, 3)), PackedAttention(short))
    assert short.windows == [whole] * 4


def test_the_attention_kernel_accepts_modern_berts_tensors() -> None:
    """On the device ``meta``, which computes shapes and types alone."""
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    network = modern()
    packed = load_packed(
        network.state_dict(), network.config.to_dict(), CARD, attention=PackedAttention(varlen), dtype=torch.bfloat16
    ).to("meta")
    arrays = packed.pack(windowed(AROUND))
    outputs = packed(copy_to_device(arrays, torch.device("meta")), arrays[-1])
    assert (outputs.shape, outputs.dtype) == ((len(AROUND), 1), torch.float32)


def test_without_windows_in_the_kernel_attention_is_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (9, 0))
    cuda = torch.device("cuda")
    attention, reason = choose_attention(cuda, torch.bfloat16, 64, has_windows=True)
    assert (attention.name, reason) == ("packed", "")
    monkeypatch.setattr(varlen, "varlen_attn", lambda query, key, value: None)
    attention, reason = choose_attention(cuda, torch.bfloat16, 64, has_windows=True)
    assert (attention.name, "within a window" in reason) == ("padded", True)
    assert choose_attention(cuda, torch.bfloat16, 64)[0].name == "packed"


def test_sequences_beyond_modern_berts_limit_are_refused() -> None:
    network = modern(max_position_embeddings=32)
    for tokens, reason in (((33,), "position id is 32"), ((4,), "token id is 300")):
        batch = windowed(tokens)
        batch[0].ids[-1] = 300 if "token" in reason else 1
        with pytest.raises(InferenceError, match=reason):
            modern_logits(network, batch, PaddedAttention())


def test_configs_of_transformers_5_are_read() -> None:
    """Its names, written out: this environment's transformers may be 4."""
    older = modern().config.to_dict()
    kinds = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
    newer = {name: value for name, value in older.items() if not name.endswith(("rope_theta", "n_layers"))}
    newer |= {"layer_types": kinds, "num_hidden_layers": 4}
    newer["rope_parameters"] = {
        "full_attention": {"rope_type": "default", "rope_theta": 160000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    }
    assert ModernBertShape.from_config(newer) == ModernBertShape.from_config(older)
    assert ModernBertShape.from_config(newer).windows == (None, WINDOW, WINDOW, None)


BERT = {"model_type": "bert", "architectures": ["BertForSequenceClassification"], "hidden_act": "gelu"}


@pytest.mark.parametrize(
    ("is_modern", "changes", "reason"),
    [
        (False, {"model_type": "electra"}, "model_type is electra"),
        (False, {"architectures": ["BertForMaskedLM"]}, "architecture is BertForMaskedLM"),
        (False, {"hidden_act": "silu"}, "hidden_act is silu"),
        (False, {"position_embedding_type": "relative_key"}, "positions are relative"),
        (False, {"model_type": "roberta"}, "architecture is BertForSequenceClassification"),
        (True, {"hidden_activation": "silu"}, "hidden_activation is silu"),
        (True, {"classifier_activation": "relu"}, "classifier_activation is relu"),
        (True, {"rope_scaling": {"rope_type": "yarn"}}, "rope_type is yarn"),
        (True, {"layer_types": ["chunked_attention"]}, "layer_types contains chunked_attention"),
        (True, {"local_attention": 1}, "local_attention is below 2"),
        (True, {"architectures": ["ModernBertForMaskedLM"]}, "architecture is ModernBertForMaskedLM"),
    ],
)
def test_configs_that_the_packed_forward_pass_cannot_compute_are_refused(
    is_modern: bool, changes: dict, reason: str
) -> None:
    config = modern().config.to_dict() if is_modern else BERT
    assert reason in unsupported_reason(config | changes, CARD)
