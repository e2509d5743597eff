"""Let sentence-transformers and PyLate save tiny random late-interaction models in tests/data, and what they compute.

Each library has an environment of its own, because they need different versions of each other:

    pip install torch==2.13.0 sentence-transformers==6.2.0
    python tests/make_late_interaction.py sentence-transformers

    pip install torch==2.13.0 pylate==1.6.0
    python tests/make_late_interaction.py pylate

The first also writes the model in Stanford's form, which both libraries read; PyLate writes what it expects of it.
"""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertModel, ModernBertConfig, ModernBertModel, PreTrainedTokenizerFast

DATA = Path(__file__).parent / "data"
TINY, FOLDER = DATA / "tiny-bert-bi-encoder", DATA / "late-interaction"
SEED, POSITIONS, DIMENSIONS = 20200427, 64, 16
TEXTS = json.loads((FOLDER / "texts.json").read_text("utf-8"))
QUERIES, DOCUMENTS = TEXTS["queries"], TEXTS["documents"]


def base(folder: Path, *, markers: tuple[str, ...] = ()) -> Path:
    """Have transformers save the tiny BERT, with fewer positions, and with rows for marker tokens."""
    shutil.rmtree(folder, ignore_errors=True)
    config = BertConfig.from_pretrained(TINY, max_position_embeddings=POSITIONS)
    weights = load_file(TINY / "model.safetensors")
    table = "embeddings.position_embeddings.weight"
    weights[table] = weights[table][:POSITIONS].clone()
    network = BertModel(config, add_pooling_layer=False)
    network.load_state_dict(weights, strict=False)
    tokenizer = saved_tokenizer()
    if markers:
        tokenizer.add_tokens(list(markers), special_tokens=True)
        with torch.no_grad():
            rows = 0.2 * torch.randn(len(markers), config.hidden_size)
            words = torch.cat([network.embeddings.word_embeddings.weight, rows])
        network.resize_token_embeddings(len(tokenizer))
        network.embeddings.word_embeddings.weight.data.copy_(words)
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def modern(folder: Path) -> Path:
    """Have transformers save a random ModernBERT whose windows are longer than a query and shorter than a document."""
    shutil.rmtree(folder, ignore_errors=True)
    tokenizer = saved_tokenizer()
    config = ModernBertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=POSITIONS, local_attention=40, pad_token_id=0, cls_token_id=2, sep_token_id=3,
        bos_token_id=2, eos_token_id=3,
    )  # fmt: skip
    network = ModernBertModel(config)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if "norm" not in name:
                parameter.normal_(std=0.25)
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def saved_tokenizer() -> PreTrainedTokenizerFast:
    """Return the tiny BERT's tokenizer for transformers."""
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "sep", "pad", "cls", "mask")}
    return PreTrainedTokenizerFast(tokenizer_file=str(TINY / "tokenizer.json"), **names)


def matrix(rows: int, columns: int) -> torch.Tensor:
    return 0.3 * torch.randn(rows, columns)


def note(name: str, arrays: dict[str, np.ndarray]) -> None:
    """Write what a library computes for the model of a name."""
    np.savez_compressed(FOLDER / f"{name}.npz", **arrays)
    sys.stdout.write(f"{name}: {', '.join(f'{key} {value.shape}' for key, value in arrays.items())}\n")


def arrays_of(queries: list, documents: list, scores: np.ndarray) -> dict[str, np.ndarray]:
    query_vectors = {f"query{index}": np.asarray(query, dtype=np.float32) for index, query in enumerate(queries)}
    query_vectors |= {
        f"document{index}": np.asarray(document, dtype=np.float32) for index, document in enumerate(documents)
    }
    return {**query_vectors, "scores": np.asarray(scores, dtype=np.float32)}


def save_with_sentence_transformers() -> None:
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.multi_vector_encoder.modules import HierarchicalTokenPooling, MultiVectorMask

    def dense(out: int, *, rows: int = 32, residual: bool = False) -> Dense:
        made = Dense(
            rows, out, bias=False, activation_function=torch.nn.Identity(), init_weight=matrix(out, rows),
            module_input_name="token_embeddings", use_residual=residual,
        )  # fmt: skip
        if residual and rows != out:
            made.residual.weight.data.copy_(matrix(out, rows))
        return made

    def write(name: str, model: MultiVectorEncoder) -> None:
        model.save_pretrained(str(FOLDER / name))
        (FOLDER / name / "README.md").unlink(missing_ok=True)
        read = MultiVectorEncoder(str(FOLDER / name), device="cpu")
        queries, documents = read.encode_query(list(QUERIES)), read.encode_document(list(DOCUMENTS))
        note(name, arrays_of(queries, documents, read.similarity(queries, documents).numpy()))

    normal = Normalize(module_input_name="token_embeddings")
    plain = base(FOLDER / "plain", markers=("[Q]", "[D]"))
    expansion = {"strategy": "fixed", "attend": False, "length": 16}
    marked = Transformer(str(plain), query_expansion=expansion, document_length=48)
    mask = MultiVectorMask(skiplist_words=[".", ",", "!", ";", "(", ")", ":"])
    prompts = {"query": "[Q] ", "document": "[D] "}
    write("expanded", MultiVectorEncoder(modules=[marked, dense(DIMENSIONS), mask, normal], prompts=prompts))
    attending = Transformer(
        str(plain),
        query_expansion={"strategy": "min", "attend": True, "length": 8},
        query_length=24,
        document_length=40,
    )
    pooling = HierarchicalTokenPooling(2)
    parts = [attending, dense(24, residual=True), dense(DIMENSIONS, rows=24, residual=True), MultiVectorMask()]
    prompts = {"query": "the query ", "document": "the document "}
    write("pooled", MultiVectorEncoder(modules=[*parts, normal, pooling], prompts=prompts))
    unexpanded = Transformer(str(plain), query_length=12)
    write("unexpanded", MultiVectorEncoder(modules=[unexpanded, dense(DIMENSIONS), MultiVectorMask(), normal]))
    shutil.rmtree(plain)
    stanford(base(FOLDER / "stanford", markers=("[unused0]", "[unused1]")))
    plain = modern(FOLDER / "plain")
    hidden = Transformer(str(plain), query_expansion=expansion, document_length=48)
    write("modern", MultiVectorEncoder(modules=[hidden, dense(DIMENSIONS), MultiVectorMask(), normal]))
    shutil.rmtree(plain)


def stanford(folder: Path) -> None:
    """Turn a BERT into a checkpoint as Stanford's code saves it."""
    weights = {f"bert.{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    weights["linear.weight"] = matrix(DIMENSIONS, 32)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["HF_ColBERT"]}, indent=2))
    metadata = {
        "query_token_id": "[unused0]", "doc_token_id": "[unused1]", "query_token": "[Q]", "doc_token": "[D]",
        "query_maxlen": 20, "doc_maxlen": 44, "attend_to_mask_tokens": False, "mask_punctuation": True,
        "dim": DIMENSIONS, "similarity": "cosine", "interaction": "colbert", "checkpoint": "random",
    }  # fmt: skip
    (folder / "artifact.metadata").write_text(json.dumps(metadata, indent=2))


def save_with_pylate() -> None:
    from pylate import models, scores

    def write(name: str, model: models.ColBERT) -> None:
        queries = model.encode(list(QUERIES), is_query=True)
        documents = model.encode(list(DOCUMENTS), is_query=False)
        pooled = model.encode(list(DOCUMENTS), is_query=False, pool_factor=2)
        padded = torch.nn.utils.rnn.pad_sequence(
            [torch.as_tensor(document) for document in documents], batch_first=True
        )
        masks = torch.nn.utils.rnn.pad_sequence([torch.ones(len(document)) for document in documents], batch_first=True)
        values = [
            scores.colbert_scores(torch.as_tensor(query)[None], padded, documents_mask=masks)[0] for query in queries
        ]
        arrays = arrays_of(queries, documents, torch.stack(values).numpy())
        note(name, {**arrays, **{f"pooled{index}": np.asarray(embedding) for index, embedding in enumerate(pooled)}})

    colbert = models.ColBERT(
        str(base(FOLDER / "plain")), device="cpu", embedding_size=DIMENSIONS, query_length=16, document_length=40,
        attend_to_expansion_tokens=False,
    )  # fmt: skip
    colbert[1].linear.weight.data.copy_(matrix(DIMENSIONS, 32))
    colbert.save(str(FOLDER / "pylate"), create_model_card=False)
    write("pylate", models.ColBERT(str(FOLDER / "pylate"), device="cpu"))
    write("stanford", models.ColBERT(str(FOLDER / "stanford"), device="cpu"))
    shutil.rmtree(FOLDER / "plain")


if __name__ == "__main__":
    torch.manual_seed(SEED)
    FOLDER.mkdir(exist_ok=True)
    {"sentence-transformers": save_with_sentence_transformers, "pylate": save_with_pylate}[sys.argv[1]]()
