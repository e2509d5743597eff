"""Save tiny random checkpoints with the installed sentence-transformers or PyLate, and its scores, for `parity`.

    PYTHON tools/models/saved_forms.py FOLDER

PYTHON is an interpreter with any version of the library; it needs no osrerank.
"""

import importlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

QUERY = "what causes low blood pressure"
DOCUMENTS = (
    "low blood pressure is caused by the heart",
    "What causes the heat flow in a boundary layer?",
    "a wing",
    "Der Blutdruck f\u00e4llt, weil das Herz langsam schl\u00e4gt: 1.000 Mal!",
    "the search engine made a good document of the score and the rank " * 3,
    "they would still see the boundary layer " * 40,
)
"""The last document exceeds the models' maximum length."""
WIDTH, MAX_TOKENS = 32, 96
SHAPE = {"hidden_size": WIDTH, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
FROM_PADDING = {"max_position_embeddings": 130, "type_vocab_size": 1}
FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "bert": {},
    "roberta": FROM_PADDING,
    "xlm-roberta": FROM_PADDING,
    "camembert": FROM_PADDING,
    "mpnet": {"max_position_embeddings": 130},
    "modernbert": {"local_attention": 16},
    "distilbert": {"dim": WIDTH, "n_layers": 3, "n_heads": 4, "hidden_dim": 48},
    "electra": {"embedding_size": 24},
    "albert": {"embedding_size": 24},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 32},
}
"""``model_type`` -> fields of its configuration in addition to `SHAPE`."""
ROBERTA_FAMILIES = ("roberta", "xlm-roberta", "camembert", "mpnet")
"""The families with RoBERTa's special tokens; the others have BERT's."""
PYLATE_FAMILIES = ("bert", "roberta", "xlm-roberta", "modernbert", "distilbert")
"""The families of late-interaction models that PyLate saves."""
TOKENS, TABLE, ROUTER = "late interaction", "static", "router"
"""Values of `Form.pooling` for models without a pooling."""
POOLINGS = ("cls", "mean", "max", "weightedmean", "mean_sqrt_len_tokens", "lasttoken")
TRAINING = ("low blood pressure and heat flow", "query: passage: the wing of the engine", *DOCUMENTS)


@dataclass(frozen=True, slots=True)
class Form:
    """The configuration of a checkpoint.

    Attributes:
        name: the checkpoint's name in the table.
        family: a key of `FAMILIES`.
        pooling: the pooling of a bi-encoder; `TABLE` for a StaticEmbedding; `ROUTER` for a StaticEmbedding of queries
            only; `TOKENS` for late interaction; empty for a cross-encoder.
        options: options of the library's class.
        tokenizer: settings of the tokenizer.
        tokens: additional special tokens.
        change: a function that changes the saved folder.
    """

    name: str
    family: str
    pooling: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: Mapping[str, Any] = field(default_factory=dict)
    tokens: tuple[str, ...] = ()
    change: Callable[[Path], None] | None = None


def forms() -> Iterator[Form]:
    """Yield each family with each pooling and as a classifier, and variants of prompts, lengths and files."""
    marked = {"query": "[QRY] ", "document": "[DOC] "}
    for family in FAMILIES:
        for pooling in POOLINGS:
            yield Form(f"{family}, {pooling}", family, pooling)
        yield Form(f"{family}, classifier", family)
        yield Form(
            f"{family}, mean, prompts of special tokens", family, "mean", {"prompts": marked}, {}, ("[QRY]", "[DOC]")
        )
    plain = {"query": "query: ", "document": "passage: "}
    yield Form("StaticEmbedding, BERT's tokenizer", "bert", TABLE)
    yield Form("StaticEmbedding, XLM-R's tokenizer, prompts", "xlm-roberta", TABLE, {"prompts": plain})
    yield Form("Router, StaticEmbedding for queries, BERT", "bert", ROUTER, {"prompts": plain})
    yield Form("xlm-roberta, mean, prompts", "xlm-roberta", "mean", {"prompts": plain})
    yield Form("bert, mean, truncation_side left", "bert", "mean", tokenizer={"truncation_side": "left"})
    yield Form("bert, classifier, truncation_side left", "bert", tokenizer={"truncation_side": "left"})
    inputs = ["input_ids", "attention_mask"]
    yield Form("bert, classifier, no token types", "bert", tokenizer={"model_input_names": inputs})
    yield Form("bert, classifier, model_max_length 40", "bert", tokenizer={"model_max_length": 40})
    prompt = {"prompts": {"query": "[QRY] "}, "default_prompt_name": "query"}
    yield Form("bert, classifier, prompt of a special token", "bert", "", prompt, {}, ("[QRY]",))
    yield Form("bert, classifier, older weights beside it", "bert", change=_add_weights)
    yield Form("bert, classifier, a LoRA adapter beside it", "bert", change=_add_adapter)
    yield Form("qwen3, classifier", "qwen3")


def late_forms() -> Iterator[Form]:
    """Yield PyLate's forms: each family, and variants of options."""
    for family in PYLATE_FAMILIES:
        yield Form(f"{family}, {TOKENS}", family, TOKENS)
    yield Form(f"bert, {TOKENS}, seen expansion", "bert", TOKENS, {"attend_to_expansion_tokens": True})
    yield Form(f"bert, {TOKENS}, no expansion", "bert", TOKENS, {"do_query_expansion": False})
    yield Form(f"bert, {TOKENS}, all words", "bert", TOKENS, {"skiplist_words": []})
    yield Form(f"bert, {TOKENS}, truncation_side left", "bert", TOKENS, tokenizer={"truncation_side": "left"})


def main() -> None:
    """Save all forms in a folder."""
    import transformers  # noqa: PLC0415 - absent where the module is only imported

    transformers.logging.set_verbosity_error()
    target = Path(sys.argv[1])
    has_pylate = find_spec("pylate") is not None
    for number, form in enumerate(late_forms() if has_pylate else forms()):
        folder = target / f"{number:03}"
        save_functions = {"": save_cross_encoder, TOKENS: save_late_interaction}
        scores = save_functions.get(form.pooling, save_bi_encoder)(form, folder)
        if form.change is not None:
            form.change(folder)
        record = {"name": form.name, "pooling": form.pooling, "scores": scores}
        (target / f"{number:03}.json").write_text(json.dumps(record), "utf-8")
    libraries = {"PyLate": "pylate"} if has_pylate else {"sentence-transformers": "sentence_transformers"}
    libraries["transformers"] = "transformers"
    versions = {name: importlib.import_module(package).__version__ for name, package in libraries.items()}
    (target / "versions.json").write_text(json.dumps(versions), "utf-8")


def save_bi_encoder(form: Form, folder: Path) -> list[float]:
    """Save a bi-encoder; return the cosine of the query and each document."""
    import sentence_transformers  # noqa: PLC0415 - see `main`
    import torch  # noqa: PLC0415 - see `main`
    from sentence_transformers.sentence_transformer import modules  # noqa: PLC0415 - see `main`

    torch.manual_seed(7)
    table = [modules.StaticEmbedding(_create_tokenizer(form.family)[0], embedding_dim=WIDTH)]
    model_modules: list[Any] = table
    if form.pooling != TABLE:
        base = _write_base(form, folder.with_name(f"{folder.name}-base"))
        pooling = "mean" if form.pooling == ROUTER else form.pooling
        model_modules = [modules.Transformer(str(base)), modules.Pooling(WIDTH, pooling)]
    if form.pooling == ROUTER:
        model_modules = [sentence_transformers.base.modules.Router.for_query_document(table, model_modules)]
    model = sentence_transformers.SentenceTransformer(modules=model_modules, device="cpu", **form.options)
    model.save_pretrained(str(folder), create_model_card=False)
    saved = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    query, documents = saved.encode_query([QUERY]), saved.encode_document(list(DOCUMENTS))
    return [float(cosine) for cosine in sentence_transformers.util.cos_sim(query, documents)[0]]


def save_late_interaction(form: Form, folder: Path) -> list[float]:
    """Save a late-interaction model; return each document's mean of the query tokens' maximum cosines."""
    import torch  # noqa: PLC0415 - see `main`
    from pylate import models, scores  # noqa: PLC0415 - see `main`

    sizes = {"embedding_size": 16, "query_length": 24, "document_length": 64}
    base = _write_base(form, folder.with_name(f"{folder.name}-base"))
    model = models.ColBERT(str(base), device="cpu", **sizes, **form.options)
    model.save(str(folder), create_model_card=False)
    saved = models.ColBERT(str(folder), device="cpu")
    query = torch.as_tensor(saved.encode([QUERY], is_query=True)[0])
    documents = [torch.as_tensor(vectors) for vectors in saved.encode(list(DOCUMENTS), is_query=False)]
    return [float(scores.colbert_scores(query[None], document[None])[0, 0]) / len(query) for document in documents]


def save_cross_encoder(form: Form, folder: Path) -> list[float]:
    """Save a cross-encoder; return the logit of each document."""
    import torch  # noqa: PLC0415 - see `main`
    from sentence_transformers import CrossEncoder  # noqa: PLC0415 - see `main`

    base = _write_base(form, folder.with_name(f"{folder.name}-base"))
    CrossEncoder(str(base), device="cpu", **form.options).save_pretrained(str(folder))
    model = CrossEncoder(str(folder), device="cpu")
    pairs = [(QUERY, document) for document in DOCUMENTS]
    return [float(logit) for logit in model.predict(pairs, activation_fn=torch.nn.Identity())]


def _write_base(form: Form, folder: Path) -> Path:
    """Save a random network and a tokenizer with transformers; return the folder."""
    import torch  # noqa: PLC0415 - see `main`
    import transformers  # noqa: PLC0415 - see `main`

    tokenizer, names = _create_tokenizer(form.family)
    tokenizer.add_special_tokens(list(form.tokens))
    ids = {kind: tokenizer.token_to_id(name) for kind, name in names.items()}
    fields = {**SHAPE, "max_position_embeddings": 128, "vocab_size": tokenizer.get_vocab_size()}
    fields |= {"pad_token_id": ids["pad"], "bos_token_id": ids["cls"], "eos_token_id": ids["sep"]}
    fields |= {"cls_token_id": ids["cls"], "sep_token_id": ids["sep"], "num_labels": 1}
    fields |= FAMILIES.get(form.family, {"num_key_value_heads": 4, "head_dim": 8})
    config = transformers.AutoConfig.for_model(form.family, **fields)
    kind = transformers.AutoModel if form.pooling else transformers.AutoModelForSequenceClassification
    torch.manual_seed(7)
    network = kind.from_config(config)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if "norm" in name.lower():
                parameter.add_(0.1 * torch.randn(parameter.shape))
            else:
                parameter.normal_(std=0.25)
    network.save_pretrained(folder)
    has_types = form.family in ("bert", "electra", "albert", "deberta-v2")
    inputs = ["input_ids", *(["token_type_ids"] if has_types else []), "attention_mask"]
    settings = {"model_max_length": MAX_TOKENS, "model_input_names": inputs, **form.tokenizer}
    special_tokens = {f"{kind}_token": name for kind, name in names.items()}
    fast_tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special_tokens, **settings)
    fast_tokenizer.save_pretrained(folder)
    return folder


def _create_tokenizer(family: str) -> tuple[Any, dict[str, str]]:
    """Train a family's tokenizer; return it and its special tokens by kind."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers  # noqa: PLC0415 - see main

    kinds = ("cls", "pad", "sep", "unk", "mask")
    is_roberta = family in ROBERTA_FAMILIES
    specials = tuple(f"[{kind.upper()}]" for kind in kinds)
    if is_roberta:
        specials = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
    options: dict[str, Any] = {"special_tokens": list(specials), "show_progress": False}
    trainer: Any
    if family in ("xlm-roberta", "camembert", "albert", "deberta-v2"):
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=180, unk_token=specials[3], **options)
    elif family in ("roberta", "modernbert", "qwen3"):
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, **options)
    else:
        tokenizer = Tokenizer(models.WordPiece(unk_token=specials[3]))
        tokenizer.normalizer = normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=200, **options)
    tokenizer.train_from_iterator(TRAINING, trainer)
    cls, sep = specials[0], specials[2]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} {sep} $B {sep}" if is_roberta else f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in (cls, sep)],
    )
    return tokenizer, dict(zip(kinds, specials, strict=True))


def _add_weights(folder: Path) -> None:
    from safetensors.numpy import load_file, save_file  # noqa: PLC0415 - see `main`

    weights = load_file(folder / "model.safetensors")
    older_weights = {name: array + array.dtype.type(0.1) for name, array in weights.items()}
    save_file(older_weights, folder / "model_before.safetensors", metadata={"format": "pt"})


def _add_adapter(folder: Path) -> None:
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4}), "utf-8")
    (folder / "adapter_model.safetensors").write_bytes(b"")


if __name__ == "__main__":
    main()
