"""Load FlashRank and fastembed with an ONNX graph of the checkpoint in place of a downloaded one."""

import json
import os
import shutil
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from .table import LoadedPeer, PeerLoader, PeerRequest


def load_flashrank(request: PeerRequest) -> LoadedPeer:
    """Load FlashRank, which has no batch size: each call gets a batch of documents."""
    from flashrank import Ranker, RerankRequest  # noqa: PLC0415 - slow

    model_name = "ms-marco-TinyBERT-L-2-v2"
    folder = _copy_model(request, f"flashrank-{request.max_tokens}/{model_name}", "flashrank-TinyBERT-L-2-v2.onnx")
    if hasattr(os, "sched_setaffinity"):  # FlashRank has no option for threads, and uses all cores
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: request.threads])
    ranker = Ranker(model_name, cache_dir=str(folder.parent), max_length=request.max_tokens, log_level="ERROR")

    def score(query: str, documents: Sequence[str], batch: int) -> Any:
        scores = np.empty(len(documents))
        for start in range(0, len(documents), batch):
            part = documents[start : start + batch]
            passages = [{"id": start + index, "text": document} for index, document in enumerate(part)]
            for passage in ranker.rerank(RerankRequest(query=query, passages=passages)):
                scores[passage["id"]] = passage["score"]
        return scores

    return LoadedPeer(f"{version('flashrank')}, onnxruntime {version('onnxruntime')}", score)


def load_fastembed(request: PeerRequest) -> LoadedPeer:
    """Load fastembed, with the graph as a custom model."""
    from fastembed.common.model_description import ModelSource  # noqa: PLC0415 - slow
    from fastembed.rerank.cross_encoder import TextCrossEncoder  # noqa: PLC0415 - slow

    folder = _copy_model(request, f"fastembed-{request.max_tokens}", "onnx/model.onnx")
    name = f"osrerank-bench/{folder.parent.name}"
    TextCrossEncoder.add_custom_model(name, ModelSource(hf=name), model_file="onnx/model.onnx")
    model = TextCrossEncoder(name, specific_model_path=str(folder), threads=request.threads, local_files_only=True)

    def score(query: str, documents: Sequence[str], batch: int) -> Any:
        return list(model.rerank(query, list(documents), batch_size=batch))

    return LoadedPeer(f"{version('fastembed')}, onnxruntime {version('onnxruntime')}", score)


def _copy_model(request: PeerRequest, name: str, graph: str) -> Path:
    """Copy the graph, and the tokenizer's files with the maximum number of tokens, into a folder; return its path."""
    target = request.folder / name
    if not target.exists():
        new = request.folder / "new"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        for path in request.padded.glob("*.*"):
            shutil.copyfile(path, new / path.name)
        file = new / "tokenizer_config.json"
        config = json.loads(file.read_text("utf-8"))
        config |= dict.fromkeys(("model_max_length", "max_length"), request.max_tokens)
        file.write_text(json.dumps(config), encoding="utf-8")
        (new / graph).parent.mkdir(exist_ok=True)
        shutil.copyfile(request.padded / "onnx" / "model.onnx", new / graph)
        target.parent.mkdir(exist_ok=True)
        new.rename(target)
    return target


LOADERS: dict[str, PeerLoader] = {"FlashRank onnx fp32": load_flashrank, "fastembed onnx fp32": load_fastembed}
