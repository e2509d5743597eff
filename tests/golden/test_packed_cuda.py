"""The packed forward pass on a CUDA device: ``pytest -m gpu``."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from osrerank.scoring.card_file import read_card
from osrerank.scoring.inputs import Tokens
from osrerank.scoring.json_file import read_json

torch = pytest.importorskip("torch")

from osrerank.scoring.backends.networks.attention import (  # noqa: E402 - torch
    Bounds,
    PackedAttention,
    PaddedAttention,
    choose_attention,
)
from osrerank.scoring.backends.networks.engine import PackedEngine, copy_to_host  # noqa: E402 - likewise
from osrerank.scoring.backends.networks.load import load_packed  # noqa: E402 - likewise
from osrerank.scoring.backends.torch import TorchBackend, read_weights  # noqa: E402 - likewise
from osrerank.scoring.registry import load_scorer  # noqa: E402 - likewise
from tests.varlen import Varlen  # noqa: E402 - likewise

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")]

DATA = Path(__file__).parents[1] / "data"
LENGTHS = np.array([512, 3, 17, 64, 1, 200, 2], dtype=np.int32)


@pytest.fixture
def sequences() -> list[Tokens]:
    draw = np.random.default_rng(4)
    return [
        Tokens(draw.integers(1, 278, size=length), np.sort(np.arange(length) % 2)) for length in (*LENGTHS[:4], 2, 200)
    ]


@pytest.fixture
def memory() -> Iterator[Callable[[int], None]]:
    """Allows so many bytes beyond what is in use."""

    def allow(spare_bytes: int) -> None:
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + spare_bytes) / total)

    yield allow
    torch.cuda.set_per_process_memory_fraction(1.0)


def bounds(lengths: np.ndarray) -> Bounds:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return Bounds(torch.from_numpy(offsets).cuda(), lengths)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("width", [32, 64])
@pytest.mark.parametrize("first_rows", [False, True])
def test_the_cuda_kernel_computes_what_its_cpu_replacement_computes(
    dtype: torch.dtype, width: int, first_rows: bool
) -> None:
    attention, reason = choose_attention(torch.device("cuda"), dtype, width)
    if not isinstance(attention, PackedAttention):
        pytest.skip(reason)
    columns = bounds(LENGTHS)
    rows = bounds(np.ones_like(LENGTHS)) if first_rows else columns
    tokens = int(LENGTHS.sum())
    projected = torch.randn(tokens, 3, 4, width, device="cuda", dtype=dtype)
    query, key, value = projected.unbind(1)
    query = query[: len(LENGTHS)] if first_rows else query
    context = attention(query, key, value, rows, columns)
    for other in (PackedAttention(Varlen()), PaddedAttention()):
        expected = other(query, key, value, rows, columns)
        torch.testing.assert_close(context, expected, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("form", ["one-label", "two-labels", "bi-encoder"])
@pytest.mark.parametrize(("dtype", "most"), [("fp32", 1e-4), ("fp16", 2e-2), ("bf16", 2e-1)])
def test_cuda_equals_the_cpu(
    form: str, dtype: str, most: float, sequences: list[Tokens], caplog: pytest.LogCaptureFixture
) -> None:
    directory = DATA / f"tiny-bert-{form}"
    card = read_card(directory)
    exact = PackedEngine(
        load_packed(
            read_weights(directory), read_json(directory / "config.json"), card,
            attention=PaddedAttention(), dtype=torch.float32,
        ),
        torch.device("cpu"),
    )(sequences)  # fmt: skip
    with caplog.at_level(logging.INFO, logger="osrerank"):
        backend = TorchBackend.load(directory, card, dtype=dtype)
    assert "on cpu" not in caplog.text
    np.testing.assert_allclose(backend.run(sequences), exact, atol=most, rtol=0)


def test_the_device_running_out_of_memory_loses_no_score(memory: Callable[[int], None]) -> None:
    scorer = load_scorer(str(DATA / "tiny-bert-one-label"), backend="torch")
    documents = ["wing " * (1 + index % 90) for index in range(4000)]
    tuples = [(index,) for index in range(len(documents))]
    expected = scorer.score("low", documents, tuples)  # each thread's libraries take the memory that they keep
    budget = scorer.backend.budget_tokens
    memory(8 * 2**20)
    scores = scorer.score("low", documents, tuples)
    assert scorer.backend.budget_tokens < budget
    assert not scores.failures
    np.testing.assert_allclose(scores.values, expected.values, atol=2e-1)


def test_scores_copied_back_from_the_gpu_are_complete() -> None:
    large = torch.randn(4096, 4096, device="cuda")
    outputs = (large @ large)[:, :2].float()
    np.testing.assert_array_equal(copy_to_host(outputs), outputs.cpu().numpy())
