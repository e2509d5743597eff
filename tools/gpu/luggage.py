"""The forms in which texts and weights travel: token ids in 16 bits, fp16 weights with their high bytes compressed."""

import itertools
import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from osrerank.scoring.inputs import Tokens

HEADER_BYTES = 65_536
"""Room for the header of a file of tensors."""

HIGH, LOW = "high", "low"
Weights = Mapping[str, np.ndarray[Any, Any]]


def write_sequences(file: Path, lists: Sequence[Sequence[Tokens]]) -> None:
    """Write queries' sequences, list after list: ids, where each sequence and its query end, how long each list is."""
    flat = [tokens for one in lists for tokens in one]
    np.savez_compressed(
        file,
        ids=np.concatenate([tokens.ids for tokens in flat]).astype(np.uint16),
        ends=np.cumsum([len(tokens.ids) for tokens in flat]).astype(np.int32),
        query_ends=np.array([np.count_nonzero(tokens.segments == 0) for tokens in flat], dtype=np.int32),
        sizes=np.array([len(one) for one in lists], dtype=np.int32),
    )


def read_sequences(file: Path) -> list[list[Tokens]]:
    """Return what `write_sequences` wrote."""
    with np.load(file) as content:
        ids, ends, query_ends, sizes = (content[name] for name in ("ids", "ends", "query_ends", "sizes"))
    pieces = np.split(ids.astype(np.int64), ends[:-1])
    flat = iter(
        Tokens(one, (np.arange(len(one)) >= query).astype(np.int64))
        for one, query in zip(pieces, query_ends, strict=True)
    )
    return [list(itertools.islice(flat, int(size))) for size in sizes]


def write_lists(file: Path, lists: Sequence[tuple[str, Sequence[str], Sequence[int]]]) -> None:
    """Write queries with their documents and relevance, each text once: lists share most of theirs."""
    places: dict[str, int] = {}
    rows = [
        [query, [places.setdefault(text, len(places)) for text in texts], list(relevance)]
        for query, texts, relevance in lists
    ]
    content = json.dumps({"texts": list(places), "lists": rows}, ensure_ascii=False, separators=(",", ":"))
    with zipfile.ZipFile(file, "w", zipfile.ZIP_LZMA) as opened:
        opened.writestr("lists", content)


def read_lists(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the lists as `osrerank.training` reads examples."""
    with zipfile.ZipFile(file) as opened:
        content = json.loads(opened.read("lists"))
    texts = content["texts"]
    for query, documents, relevance in content["lists"]:
        yield {"query": query, "documents": [texts[place] for place in documents], "relevance": relevance}


def write_halves(source: Path, target: Path) -> None:
    """Write a safetensors file in fp16, its bytes sorted into high ones, which compress, and low ones, which do not."""
    weights = load_file(source)
    if any(tensor.dtype == np.float32 for tensor in weights.values()):
        halves = target.with_name(f"{target.name}.fp16")
        save_file({name: tensor.astype(np.float16) for name, tensor in weights.items()}, halves)
        content = halves.read_bytes()
        halves.unlink()
    else:
        content = source.read_bytes()
    with zipfile.ZipFile(target, "w") as opened:
        opened.writestr(HIGH, content[1::2], zipfile.ZIP_DEFLATED)
        opened.writestr(LOW, content[0::2], zipfile.ZIP_STORED)


def read_halves(source: Path, target: Path) -> None:
    """Write the safetensors file again from what `write_halves` wrote."""
    with zipfile.ZipFile(source) as opened:
        high, low = opened.read(HIGH), opened.read(LOW)
    content = bytearray(len(high) + len(low))
    content[0::2], content[1::2] = low, high
    target.write_bytes(content)


def write_changed(start: Path, trained: Path, folder: Path, *, stem: str, most_bytes: int) -> list[Path]:
    """Write the weights that a training changed, in fp16, in files of at most so many bytes.

    Args:
        start: safetensors from which the training began.
        trained: those that it made, of the same names.
        folder: where the files go, as ``STEM-0.safetensors`` and so on.
        stem: see above.
        most_bytes: of a file.

    Raises:
        ValueError: one tensor is larger than a file may be.
    """
    before, after = load_file(start), load_file(trained)
    changed = {
        name: tensor.astype(np.float16)
        for name, tensor in after.items()
        if name not in before or not np.array_equal(tensor.astype(np.float16), before[name].astype(np.float16))
    }
    files = []
    for number, names in enumerate(
        divide({name: one.nbytes for name, one in changed.items()}, most_bytes - HEADER_BYTES)
    ):
        file = folder / f"{stem}-{number}.safetensors"
        save_file({name: changed[name] for name in names}, file)
        files.append(file)
    return files


def join_changed(start: Path, changed: Sequence[Path], target: Path) -> None:
    """Write a model's safetensors in fp32: those of the start, and in their place what changed."""
    weights = dict(load_file(start))
    for file in changed:
        weights |= load_file(file)
    save_file({name: tensor.astype(np.float32) for name, tensor in weights.items()}, target, metadata={"format": "pt"})


def divide(sizes: Mapping[str, int], most_bytes: int) -> list[list[str]]:
    """Divide files, or tensors of one, into parts of at most so many bytes, in their order.

    Raises:
        ValueError: one is larger than a part may be.
    """
    parts: list[list[str]] = []
    left = 0
    for name, size in sizes.items():
        if size > most_bytes:
            reason = f"{name} has {size} bytes, and at most {most_bytes} can travel at once"
            raise ValueError(f"{reason}; leave it out, or freeze that layer")
        if size > left:
            parts.append([])
            left = most_bytes
        parts[-1].append(name)
        left -= size
    return parts
