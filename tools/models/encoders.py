"""Save tiny random bi-encoders with sentence-transformers, and their vectors, for `tests/data/encoders`.

    PYTHON tools/models/encoders.py tests/data/encoders

PYTHON is an interpreter with a version of sentence-transformers. The output has the content of each file that the
library wrote. Of the weights, it has only names and shapes, which determine the values (`random_tensor`), so that
`restore_checkpoint` can write the files again without the library.
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

WIDTH, MAX_TOKENS = 32, 180
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
"""The last text exceeds the models' maximum length, and the two before it MPNet's maximum relative distance."""
SHAPE = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "bert": {"max_position_embeddings": 256},
    "roberta": {"max_position_embeddings": 258, "type_vocab_size": 1},
    "xlm-roberta": {"max_position_embeddings": 258, "type_vocab_size": 1},
    "mpnet": {"max_position_embeddings": 258},
    "modernbert": {"num_hidden_layers": 4, "local_attention": 16, "max_position_embeddings": 256},
}
BERT_TOKENIZER_FAMILIES = ("bert", "modernbert")
"""The families with BERT's special tokens; the others have RoBERTa's."""
BERT_TOKENS = ("[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]")
ROBERTA_TOKENS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")


@dataclass(frozen=True, slots=True)
class EncoderForm:
    """The configuration of a tested bi-encoder.

    Attributes:
        family: a key of `FAMILIES`.
        pooling: the pooling's name in sentence-transformers.
        head: a function of sentence-transformers' ``models`` that returns the modules after the pooling.
        options: options of ``SentenceTransformer``.
        tokenizer: the family whose tokenizer it uses, if that is another.
    """

    family: str
    pooling: str
    head: Callable[[Any], Sequence[Any]] = lambda modules: [modules.Normalize()]
    options: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: str = ""


PROMPT_NAMES = {"query": ("query",), "document": ("document", "passage")}
"""The possible names of the prompt of queries and of documents."""
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


def random_tensor(name: str, shape: Sequence[int]) -> npt.NDArray[np.float32]:
    """Return random values of a tensor, which depend on its name and shape only, and make texts differ."""
    values = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape).astype(np.float32)
    is_norm = "norm" in name.lower() and name.endswith("weight")
    return np.float32(1) + np.float32(0.1) * values if is_norm else np.float32(0.25) * values


def read_forms(file: Path) -> dict[str, Any]:
    """Return the saved forms by name, each with ``files``, ``weights``, and ``vectors`` of queries and documents."""
    content = json.loads(file.read_text("utf-8"))
    forms = {}
    for name, form in content["forms"].items():
        files = {**form["files"], TOKENIZER_FILE: content["tokenizers"][form["tokenizer"]]}
        vectors = {side: _decode(text) for side, text in form["vectors"].items()}
        forms[name] = {**form, "files": files, "vectors": {"document": vectors["query"], **vectors}}
    return forms


def _decode(text: str) -> npt.NDArray[np.float32]:
    return np.frombuffer(base64.b64decode(text), np.float32).reshape(len(TEXTS), -1)


def restore_checkpoint(form: Mapping[str, Any], folder: Path) -> Path:
    """Write the files of a checkpoint again.

    Args:
        form: a form that `read_forms` returned.
        folder: the folder to create.
    """
    from safetensors.numpy import save_file  # noqa: PLC0415 - of the extra torch

    for name, content in form["files"].items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(content), "utf-8")
    for name, shapes in form["weights"].items():
        tensors = {tensor: random_tensor(tensor, shape) for tensor, shape in shapes.items()}
        save_file(tensors, folder / name, metadata={"format": "pt"})
    return folder


def main() -> None:
    """Save all forms with the installed version."""
    import sentence_transformers  # noqa: PLC0415 - only in PYTHON's environment

    version = ".".join(sentence_transformers.__version__.split(".")[:2])
    tokenizers: dict[str, Any] = {}
    forms = {}
    for name, form in FORMS.items():
        family = form.tokenizer or form.family
        forms[name] = {"tokenizer": family, **_save_form(form)}
        tokenizer = forms[name]["files"].pop(TOKENIZER_FILE)
        if tokenizers.setdefault(family, tokenizer) != tokenizer:
            raise ValueError(f"the tokenizer of {name} differs from that of other models of {family}")
    file = Path(sys.argv[1]) / f"sentence-transformers-{version}.json"
    file.write_text(json.dumps({"tokenizers": tokenizers, "forms": forms}, separators=(",", ":")), "utf-8")


def _save_form(form: EncoderForm) -> dict[str, Any]:
    """Save a form with the library; return its files, the shapes of its weights, and its vectors."""
    import sentence_transformers  # noqa: PLC0415 - see main
    from safetensors.numpy import load_file, save_file  # noqa: PLC0415 - see main
    from sentence_transformers import models  # noqa: PLC0415 - see main

    with tempfile.TemporaryDirectory() as parent:
        base, folder = Path(parent) / "base", Path(parent) / "saved"
        _write_base(form.family, form.tokenizer or form.family, base)
        transformer = models.Transformer(str(base), max_seq_length=MAX_TOKENS)
        modules = [transformer, models.Pooling(WIDTH, form.pooling), *form.head(models)]
        model = sentence_transformers.SentenceTransformer(modules=modules, device="cpu", **form.options)
        model.save_pretrained(str(folder), create_model_card=False)
        shapes = {}
        for file in sorted(folder.rglob("*.safetensors")):
            tensors = {name: random_tensor(name, array.shape) for name, array in load_file(file).items()}
            save_file(tensors, file, metadata={"format": "pt"})
            shapes[str(file.relative_to(folder))] = {name: list(array.shape) for name, array in tensors.items()}
        files = {str(file.relative_to(folder)): json.loads(file.read_text("utf-8")) for file in folder.rglob("*.json")}
        return {"files": dict(sorted(files.items())), "weights": shapes, "vectors": _encode_texts(folder)}


def _encode_texts(folder: Path) -> dict[str, str]:
    """Return the library's vectors of `TEXTS` as queries and, if the prompts differ, as documents, in base64.

    The vectors have norm 1 if the model's similarity is the cosine.
    """
    import sentence_transformers  # noqa: PLC0415 - see main

    model = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    vectors = {}
    for side, names in PROMPT_NAMES.items():
        prompt = next((model.prompts[name] for name in names if model.prompts.get(name)), None)
        is_cosine = model.similarity_fn_name == "cosine"
        rows = model.encode(list(TEXTS), prompt=prompt, normalize_embeddings=is_cosine).astype(np.float32)
        if prompt or side == "query":
            vectors[side] = base64.b64encode(rows.tobytes()).decode()
    return vectors


def _write_base(family: str, tokenizer_family: str, folder: Path) -> None:
    """Write a random transformer with a tokenizer."""
    import transformers  # noqa: PLC0415 - see main

    tokenizer = _create_tokenizer(tokenizer_family)
    names = BERT_TOKENS if tokenizer_family in BERT_TOKENIZER_FAMILIES else ROBERTA_TOKENS
    cls, pad, sep = (tokenizer.token_to_id(name) for name in names[:3])
    fields = {**SHAPE, **FAMILIES[family], "vocab_size": tokenizer.get_vocab_size(), "pad_token_id": pad}
    fields |= {"bos_token_id": cls, "eos_token_id": sep}
    if family == "modernbert":
        fields |= {"cls_token_id": cls, "sep_token_id": sep}
    network = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(family, **fields))
    network.save_pretrained(folder)
    segments = ["token_type_ids"] if family == "bert" else []
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=MAX_TOKENS,
        model_input_names=["input_ids", *segments, "attention_mask"],
        **{f"{kind}_token": name for kind, name in zip(("cls", "pad", "sep", "unk", "mask"), names, strict=True)},
    ).save_pretrained(folder)


@cache
def _create_tokenizer(family: str) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers  # noqa: PLC0415 - see main

    if family in BERT_TOKENIZER_FAMILIES:
        return Tokenizer.from_file(str(WORDPIECE))
    options = {"special_tokens": list(ROBERTA_TOKENS), "show_progress": False}
    if family == "xlm-roberta":
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=180, unk_token=ROBERTA_TOKENS[3], **options)
    else:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, **options)
    tokenizer.train_from_iterator([*TEXTS, *E5_PROMPTS.values()], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("<s>", "</s>")],
    )
    return tokenizer


def _gelu() -> Any:
    import torch  # noqa: PLC0415 - see main

    return torch.nn.GELU()


if __name__ == "__main__":
    main()
