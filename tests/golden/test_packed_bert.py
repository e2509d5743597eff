"""The packed forward pass against transformers' own, and against a bi-encoder's padded module.

Each is computed twice: with attention on a padded grid, as the CPU does it, and through the arguments of the CUDA
kernel, with a stand-in that computes the same thing densely.
"""

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from osrerank.errors import InferenceError
from osrerank.scoring.card import ModelCard, Pooling
from osrerank.scoring.inputs import Tokens, padded
from osrerank.scoring.model_files import read_card, read_json

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from osrerank.scoring.backends.networks.attention import (  # noqa: E402 - imports torch
    Attention,
    PaddedAttention,
    VarlenAttention,
)
from osrerank.scoring.backends.networks.bi_encoder import PaddedBiEncoder  # noqa: E402 - likewise
from osrerank.scoring.backends.networks.classifier import Classifier  # noqa: E402 - likewise
from osrerank.scoring.backends.networks.engine import PackedEngine, PaddedEngine, on_device  # noqa: E402 - likewise
from osrerank.scoring.backends.networks.load import load_packed, obstacle  # noqa: E402 - likewise
from osrerank.scoring.backends.torch import read_weights  # noqa: E402 - likewise
from tests.varlen import Varlen, attentions  # noqa: E402 - likewise

DATA = Path(__file__).parents[1] / "data"
CPU = torch.device("cpu")
LENGTHS = (512, 3, 17, 64, 64, 200, 2)
"""A directory of all-MiniLM-L6-v2 in Hugging Face layout."""


def sequences(lengths: Sequence[int], vocabulary: int, *, segments: int = 2, seed: int = 1) -> list[Tokens]:
    """Random tokens; the segments are halves or thirds of a sequence."""
    draw = np.random.default_rng(seed)
    return [
        Tokens(draw.integers(1, vocabulary, size=length), np.sort(np.arange(length) % segments)) for length in lengths
    ]


def logits(
    network: torch.nn.Module,
    config: dict,
    card: ModelCard,
    batch: Sequence[Tokens],
    attention: Callable[[], Attention] = PaddedAttention,
    dtype: torch.dtype = torch.float32,
) -> np.ndarray:
    packed = load_packed(network.state_dict(), config, card, attention=attention(), dtype=dtype)
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
def test_classifiers_equal_transformers(
    attention: Callable[[], Attention], kind: str, architecture: str, changes: dict
) -> None:
    positions = {"max_position_embeddings": 514, "pad_token_id": 1} if kind != "bert" else {}
    network = made(kind, architecture, **positions, **changes)
    config = network.config.to_dict() | {"architectures": [architecture]}
    card = ModelCard("made", "logit1")
    assert obstacle(config, card) == ""
    batch = [
        Tokens(np.where(tokens.ids == config["pad_token_id"], 2, tokens.ids), tokens.segments)
        for tokens in sequences(LENGTHS, 300, segments=max(2, config["type_vocab_size"]))
    ]
    found = logits(network, config, card, batch, attention)
    expected = reference(network, batch, config["pad_token_id"])
    assert np.ptp(expected, axis=0).min() > 0.1
    np.testing.assert_allclose(found, expected, atol=1e-4, rtol=0)


def padded_vectors(directory: Path, pooling: Pooling, batch: Sequence[Tokens]) -> np.ndarray:
    network = PaddedBiEncoder(read_json(directory / "config.json"), pooling).load_bert(read_weights(directory))
    inputs = padded(batch)
    ids, mask = (torch.from_numpy(part) for part in (inputs.input_ids, inputs.attention_mask))
    with torch.inference_mode():
        return network.encode(ids, mask).numpy()


@attentions
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_a_bi_encoder_equals_the_padded_module(attention: Callable[[], Attention], pooling: Pooling) -> None:
    directory = DATA / "tiny-bert-bi-encoder"
    card = ModelCard("tiny", "cosine", kind="bi-encoder", pooling=pooling)
    batch = [Tokens(one.ids, np.zeros_like(one.ids)) for one in sequences((*LENGTHS, 2), 278)]
    packed = committed(directory, attention(), card=card)
    expected = padded_vectors(directory, pooling, batch)
    np.testing.assert_allclose(PackedEngine(packed, CPU)(batch), expected, atol=1e-5, rtol=0)


def test_the_stand_in_has_the_signature_of_the_kernel() -> None:
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    theirs = inspect.signature(varlen.varlen_attn).parameters
    ours = dict(inspect.signature(Varlen().varlen_attn).parameters)
    assert {name: theirs[name].kind for name in ours} == {name: ours[name].kind for name in ours}
    positional = [name for name, parameter in ours.items() if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    assert list(theirs)[: len(positional)] == positional


@pytest.mark.parametrize("kind", ["cross-encoder", "bi-encoder"])
def test_the_kernel_itself_takes_what_the_network_gives(kind: str) -> None:
    """On the device ``meta``, which computes shapes and types alone."""
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    directory = DATA / ("tiny-bert-bi-encoder" if kind == "bi-encoder" else "tiny-bert-one-label")
    attention = VarlenAttention(varlen)
    packed = committed(directory, attention, torch.bfloat16).to("meta")
    arrays = packed.pack(sequences(LENGTHS, 278))
    outputs = packed(on_device(arrays, torch.device("meta")), arrays[-1])
    assert (len(outputs), outputs.dtype) == (len(LENGTHS), torch.float32)


def test_the_last_layer_of_a_classifier_asks_for_first_rows_alone() -> None:
    kernel = Varlen()
    network = made("bert", "BertForSequenceClassification", num_labels=1)
    config = network.config.to_dict()
    logits(network, config, ModelCard("made", "logit1"), sequences((20, 9), 300), lambda: VarlenAttention(kernel))
    assert [call["rows"] for call in kernel.calls] == [29, 29, 2]
    assert [call["columns"] for call in kernel.calls] == [29, 29, 29]


@attentions
@pytest.mark.parametrize("kind", ["cross-encoder", "bi-encoder"])
def test_a_score_depends_on_no_neighbour_and_keeps_its_place(attention: Callable[[], Attention], kind: str) -> None:
    directory = DATA / ("tiny-bert-bi-encoder" if kind == "bi-encoder" else "tiny-bert-one-label")
    packed = committed(directory, attention())
    engine = PackedEngine(packed, CPU)
    batch = sequences((*LENGTHS, *range(2, 40)), 278)
    alone = np.concatenate([engine([tokens]) for tokens in batch])
    assert np.ptp(alone) > 0.1
    np.testing.assert_allclose(engine(batch), alone, atol=1e-5, rtol=0)
    np.testing.assert_allclose(engine(batch[::-1])[::-1], alone, atol=1e-5, rtol=0)


@attentions
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["cross-encoder", "bi-encoder"])
def test_sixteen_bits_are_near(attention: Callable[[], Attention], dtype: torch.dtype, kind: str) -> None:
    directory = DATA / ("tiny-bert-bi-encoder" if kind == "bi-encoder" else "tiny-bert-one-label")
    batch = sequences(LENGTHS, 278)
    fine, coarse = (
        PackedEngine(committed(directory, attention(), exactness), CPU)(batch) for exactness in (torch.float32, dtype)
    )
    assert coarse.dtype == np.float32
    difference = np.abs(coarse - fine).max()
    assert 0 < difference < 0.05 * np.ptp(fine) + 0.05


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        (Tokens(np.array([2, 278]), np.array([0, 1])), "token id is 278.*278 rows"),
        (Tokens(np.array([2, 5]), np.array([0, 2])), "segment id is 2.*2 rows"),
        (Tokens(np.full(513, 5), np.zeros(513, dtype=np.int64)), "position id is 512.*512 rows"),
        (Tokens(np.array([-1, 5]), np.array([0, 1])), "token id"),
    ],
)
def test_ids_beyond_the_tables_are_refused(tokens: Tokens, reason: str) -> None:
    directory = DATA / "tiny-bert-one-label"
    packed = committed(directory, PaddedAttention())
    with pytest.raises(InferenceError, match=reason):
        packed.pack([tokens])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_type": "electra"}, "model_type is electra"),
        ({"architectures": ["BertForMaskedLM"]}, "architecture is BertForMaskedLM"),
        ({"hidden_act": "silu"}, "hidden_act is silu"),
        ({"position_embedding_type": "relative_key"}, "positions are relative"),
        ({"model_type": "roberta"}, "architecture is BertForSequenceClassification"),
    ],
)
def test_what_it_cannot_compute_it_says(changes: dict, reason: str) -> None:
    config = {"model_type": "bert", "architectures": ["BertForSequenceClassification"], "hidden_act": "gelu"}
    assert reason in obstacle(config | changes, ModelCard("made", "logit1"))


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
    found = logits(network, config.to_dict() | architecture, ModelCard("large", "logits2"), batch)
    assert np.ptp(expected, axis=0).min() > 1e-3
    np.testing.assert_allclose(found, expected, atol=1e-4, rtol=0)
