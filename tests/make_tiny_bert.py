"""Make the tiny random models in tests/data, the same each time: ``python -m tests.make_tiny_bert``."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertForSequenceClassification, BertModel

from osrerank.export.export_model import ExportOptions, export_model

SEED = 20190113
FORMS = ("one-label", "two-labels", "bi-encoder", "duo")
DATA = Path(__file__).parent / "data"
SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = """
the of and to in a is that for it as was with be by on not he his but at are this have from which you had or an
they were one all we her she there would their him been has when who will more no if out so said what up its
about into than them can only other new some could time these two may then do first any my now such like our
over man me even most made after also did many before must through back years where much your way well down
should because each just those people how too little state good very make world still own see men work long get
here between both life being under never day same another know while last might us great old year off come since
against go came right used take three blood pressure low cause causes water heat flow wing boundary layer search
engine query document rank score model
"""


def tokenizer() -> Tokenizer:
    letters = [chr(code) for code in range(ord("!"), ord("~") + 1) if not chr(code).isupper()]
    endings = [f"##{letter}" for letter in letters if letter.isalnum()] + ["##ing", "##ed", "##er", "##ly", "##s"]
    vocabulary = list(dict.fromkeys([*SPECIALS, *letters, *endings, *WORDS.split()]))
    ids = {word_piece: index for index, word_piece in enumerate(vocabulary)}
    made = Tokenizer(models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.add_special_tokens(list(SPECIALS))
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])],
    )
    return made


def save(network: torch.nn.Module, folder: Path) -> None:
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():  # transformers starts at sigma 0.02, where every pair has the same score
        for name, parameter in network.named_parameters():
            centre = 1.0 if name.endswith("LayerNorm.weight") else 0.0
            parameter.copy_(centre + 0.2 * torch.randn(parameter.shape, generator=generator))
    network.save_pretrained(folder, safe_serialization=True)
    tokenizer().save(str(folder / "tokenizer.json"))


def make(folder: Path, form: str) -> None:
    """Write one of the `FORMS` with safetensors and an fp32 graph."""
    config = BertConfig(
        vocab_size=tokenizer().get_vocab_size(),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=512,
        type_vocab_size=3 if form == "duo" else 2,
        num_labels=1 if form == "one-label" else 2,
    )
    network = (
        BertModel(config, add_pooling_layer=False) if form == "bi-encoder" else BertForSequenceClassification(config)
    )
    plain = folder.with_name(f".{folder.name}.plain")
    save(network, plain)
    shutil.rmtree(folder, ignore_errors=True)
    kind, pooling = "duo" if form == "duo" else "mono", "mean" if form == "bi-encoder" else None
    options = ExportOptions(f"tiny-bert-{form}", kind, pooling=pooling, precision="fp32", keep_weights=True)
    export_model(plain, folder, replace(options, padded=form != "bi-encoder"))
    shutil.rmtree(plain)


def main() -> None:
    for form in FORMS:
        make(DATA / f"tiny-bert-{form}", form)
        card = json.loads((DATA / f"tiny-bert-{form}" / "osrerank.json").read_text())
        sys.stdout.write(f"{card['name']}: {card['head']}, {card['kind']}\n")


if __name__ == "__main__":
    main()
