"""Tiny random bi-encoders as sentence-transformers saves them, with its own vectors: `tests/data/encoders`.

    PYTHON tools/models/encoders.py tests/data/encoders

where PYTHON has the version of sentence-transformers that is to save them. What is kept is each file that it wrote, but
for the weights: these are drawn by name (`drawn`), so that names and shapes are enough. `restored` writes them again,
without the library.
"""

import base64
import json
import sys
import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

WIDTH, LONGEST = 32, 180
TOKENIZER_FILE = "tokenizer.json"
WORDPIECE = Path(__file__).parents[2] / "tests" / "data" / "tiny-bert-bi-encoder" / "tokenizer.json"
TEXTS = (
    "low blood pressure is caused by the heart",
    "What causes the heat flow in a boundary layer?",
    "a wing",
    "",
    "Der Blutdruck f\u00e4llt, weil das Herz langsam schl\u00e4gt: 1.000 Mal!",
    "the search engine made a good document of the score and the rank " * 3,
    "blood " * 90,
    "they would still see the boundary layer " * 40,
)
"""Of these the last is longer than the models read, and the two before it are longer than MPNet's farthest distance."""
SHAPE = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "bert": {"max_position_embeddings": 256},
    "roberta": {"max_position_embeddings": 258, "type_vocab_size": 1},
    "xlm-roberta": {"max_position_embeddings": 258, "type_vocab_size": 1},
    "mpnet": {"max_position_embeddings": 258},
    "modernbert": {"num_hidden_layers": 4, "local_attention": 16, "max_position_embeddings": 256},
}
FROM_BERT = ("bert", "modernbert")
"""Families with BERT's special tokens; the others have RoBERTa's."""
BERTS, ROBERTAS = ("[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"), ("<s>", "<pad>", "</s>", "<unk>", "<mask>")


@dataclass(frozen=True, slots=True)
class EncoderForm:
    """A form of bi-encoder that is tested.

    Attributes:
        family: a key of `FAMILIES`.
        pooling: sentence-transformers' name of it.
        behind: makes the modules behind the pooling, from the package of modules.
        options: of ``SentenceTransformer``.
        tokenizer: the family that has its tokenizer; empty for its own.
    """

    family: str
    pooling: str
    behind: Callable[[Any], Sequence[Any]] = lambda modules: [modules.Normalize()]
    options: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: str = ""


SIDES = {"query": ("query",), "document": ("document", "passage")}
"""The names of a side's prompts."""
E5_PROMPTS = {"query": "query: ", "passage": "passage: "}
FORMS: Mapping[str, EncoderForm] = {
    "BERT, mean": EncoderForm("bert", "mean"),
    "BERT, CLS, Dense": EncoderForm("bert", "cls", lambda modules: [modules.Dense(WIDTH, 24), modules.Normalize()]),
    "BERT, XLM-R's tokenizer, mean, prompts": EncoderForm(
        "bert", "mean", options={"prompts": E5_PROMPTS}, tokenizer="xlm-roberta"
    ),
    "BERT, last token": EncoderForm("bert", "lasttoken"),
    "BERT, mean, 12 of 32 dimensions": EncoderForm("bert", "mean", options={"truncate_dim": 12}),
    "RoBERTa, mean": EncoderForm("roberta", "mean", lambda _: []),
    "RoBERTa, CLS, LayerNorm, Dense": EncoderForm(
        "roberta",
        "cls",
        lambda modules: [modules.LayerNorm(WIDTH), modules.Dense(WIDTH, 40, bias=False, activation_function=_gelu())],
    ),
    "XLM-R, mean, prompts": EncoderForm("xlm-roberta", "mean", options={"prompts": E5_PROMPTS}),
    "MPNet, mean": EncoderForm("mpnet", "mean"),
    "MPNet, CLS, dot product": EncoderForm("mpnet", "cls", lambda _: [], {"similarity_fn_name": "dot"}),
    "ModernBERT, CLS": EncoderForm("modernbert", "cls", lambda _: []),
    "ModernBERT, mean": EncoderForm("modernbert", "mean"),
    "ModernBERT, CLS, dot product of 12 dimensions": EncoderForm(
        "modernbert", "cls", options={"similarity_fn_name": "dot", "truncate_dim": 12}
    ),
}


def drawn(name: str, shape: Sequence[int]) -> npt.NDArray[np.float32]:
    """Return a tensor's random values, the same each time; so large that texts differ."""
    values = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape).astype(np.float32)
    is_norm = "norm" in name.lower() and name.endswith("weight")
    return np.float32(1) + np.float32(0.1) * values if is_norm else np.float32(0.25) * values


def read(file: Path) -> dict[str, Any]:
    """Return the forms of a version, by name: each with ``files``, ``weights`` and its ``vectors`` by side."""
    content = json.loads(file.read_text("utf-8"))
    forms = {}
    for name, saved in content["forms"].items():
        files = {**saved["files"], TOKENIZER_FILE: content["tokenizers"][saved["tokenizer"]]}
        vectors = {side: _decoded(text) for side, text in saved["vectors"].items()}
        forms[name] = {**saved, "files": files, "vectors": {"document": vectors["query"], **vectors}}
    return forms


def _decoded(text: str) -> npt.NDArray[np.float32]:
    return np.frombuffer(base64.b64decode(text), np.float32).reshape(len(TEXTS), -1)


def restored(saved: Mapping[str, Any], folder: Path) -> Path:
    """Write a checkpoint again, as it was saved.

    Args:
        saved: one of the forms of `read`.
        folder: to make.
    """
    from safetensors.numpy import save_file  # noqa: PLC0415 - of the extra torch

    for name, content in saved["files"].items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(content), "utf-8")
    for name, shapes in saved["weights"].items():
        tensors = {tensor: drawn(tensor, shape) for tensor, shape in shapes.items()}
        save_file(tensors, folder / name, metadata={"format": "pt"})
    return folder


def main() -> None:
    """Write the file of the installed version."""
    import sentence_transformers  # noqa: PLC0415 - see the module's text

    version = ".".join(sentence_transformers.__version__.split(".")[:2])
    tokenizers: dict[str, Any] = {}
    forms = {}
    for name, form in FORMS.items():
        kind = form.tokenizer or form.family
        forms[name] = {"tokenizer": kind, **_saved(form)}
        own = forms[name]["files"].pop(TOKENIZER_FILE)
        if tokenizers.setdefault(kind, own) != own:
            raise ValueError(f"{name} has another tokenizer than the models of {kind} before it")
    file = Path(sys.argv[1]) / f"sentence-transformers-{version}.json"
    file.write_text(json.dumps({"tokenizers": tokenizers, "forms": forms}, separators=(",", ":")), "utf-8")


def _saved(form: EncoderForm) -> dict[str, Any]:
    """Have the library save a form; return its files, the shapes of its weights, and its vectors."""
    import sentence_transformers  # noqa: PLC0415 - see the module's text
    from safetensors.numpy import load_file, save_file  # noqa: PLC0415 - likewise
    from sentence_transformers import models  # noqa: PLC0415 - likewise

    with tempfile.TemporaryDirectory() as parent:
        base, folder = Path(parent) / "base", Path(parent) / "saved"
        _write_base(form.family, form.tokenizer or form.family, base)
        transformer = models.Transformer(str(base), max_seq_length=LONGEST)
        parts = [transformer, models.Pooling(WIDTH, form.pooling), *form.behind(models)]
        made = sentence_transformers.SentenceTransformer(modules=parts, device="cpu", **form.options)
        made.save_pretrained(str(folder), create_model_card=False)
        shapes = {}
        for file in sorted(folder.rglob("*.safetensors")):
            tensors = {name: drawn(name, array.shape) for name, array in load_file(file).items()}
            save_file(tensors, file, metadata={"format": "pt"})
            shapes[str(file.relative_to(folder))] = {name: list(array.shape) for name, array in tensors.items()}
        files = {str(file.relative_to(folder)): json.loads(file.read_text("utf-8")) for file in folder.rglob("*.json")}
        return {"files": dict(sorted(files.items())), "weights": shapes, "vectors": _vectors(folder)}


def _vectors(folder: Path) -> dict[str, str]:
    """Return the library's vectors of queries and, if they differ, documents; of norm 1 where they have a cosine."""
    import sentence_transformers  # noqa: PLC0415 - see the module's text

    model = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    found = {}
    for side, names in SIDES.items():
        prompt = next((model.prompts[name] for name in names if model.prompts.get(name)), None)
        is_cosine = model.similarity_fn_name == "cosine"
        rows = model.encode(list(TEXTS), prompt=prompt, normalize_embeddings=is_cosine).astype(np.float32)
        if prompt or side == "query":
            found[side] = base64.b64encode(rows.tobytes()).decode()
    return found


def _write_base(family: str, kind: str, folder: Path) -> None:
    import transformers  # noqa: PLC0415 - see the module's text

    tokenizer, names = _tokenizer(kind), BERTS if kind in FROM_BERT else ROBERTAS
    ids = dict(zip(("cls", "pad", "sep"), (tokenizer.token_to_id(name) for name in names), strict=False))
    fields = {**SHAPE, **FAMILIES[family], "vocab_size": tokenizer.get_vocab_size(), "pad_token_id": ids["pad"]}
    fields |= {"bos_token_id": ids["cls"], "eos_token_id": ids["sep"]}
    fields |= {"cls_token_id": ids["cls"], "sep_token_id": ids["sep"]} if family == "modernbert" else {}
    network = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(family, **fields))
    network.save_pretrained(folder)
    segments = ["token_type_ids"] if family == "bert" else []
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=LONGEST,
        model_input_names=["input_ids", *segments, "attention_mask"],
        **{f"{kind}_token": name for kind, name in zip(("cls", "pad", "sep", "unk", "mask"), names, strict=True)},
    ).save_pretrained(folder)


@cache
def _tokenizer(kind: str) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers  # noqa: PLC0415 - as above

    if kind in FROM_BERT:
        return Tokenizer.from_file(str(WORDPIECE))
    if kind == "xlm-roberta":
        made = Tokenizer(models.Unigram())
        made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=180, special_tokens=list(ROBERTAS), unk_token=ROBERTAS[3], show_progress=False
        )
    else:
        made = Tokenizer(models.BPE())
        made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=300,
            special_tokens=list(ROBERTAS),
            show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        )
    made.train_from_iterator([*TEXTS, *E5_PROMPTS.values()], trainer)
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[(name, made.token_to_id(name)) for name in ("<s>", "</s>")],
    )
    return made


def _gelu() -> Any:
    import torch  # noqa: PLC0415 - see the module's text

    return torch.nn.GELU()


if __name__ == "__main__":
    main()
