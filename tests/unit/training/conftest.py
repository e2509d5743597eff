"""Tiny models and data that training tests share; one thread, so that sums are made in one order."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

QUERIES = ("low blood pressure", "heat flow", "boundary layer", "the wing of the engine")
TEXTS = (
    "low salt can cause low blood pressure",
    "the heat of the water",
    "wing and boundary layer",
    "a good search engine",
)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    """24 examples of a relevant document and five others each, of unlike lengths."""
    lines = []
    for number in range(24):
        shift = number % 4
        relevant = f"{TEXTS[shift]} " + "about " * (number % 7)
        others = [f"{TEXTS[(shift + other) % 4]} " + "more of the same " * (other * number % 5) for other in (1, 2, 3)]
        content = {"query": QUERIES[shift], "documents": [*others, relevant], "relevance": [0, 0, 0, 1]}
        lines.append(json.dumps(content))
    path = tmp_path / "examples.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
