"""Print sentencepiece's character map, or its token ids of texts, in an environment with sentencepiece.

python reference.py map > MAP          the map nmt_nfkc, with which XLM-R normalises texts
python reference.py ids TOKENIZER      the ids of each text in a JSON list on standard input, with the pieces of a
                                       tokenizer.json
"""

import base64
import io
import json
import sys
from pathlib import Path

import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as messages

SPECIALS = ("<unk>", "<s>", "</s>")
"""The first three pieces of a sentencepiece model. XLM-R has four others, so that its ids of pieces are one higher."""


def read_map() -> bytes:
    """Return the map, which every model that sentencepiece trains contains."""
    model_file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b c"]),
        model_writer=model_file,
        vocab_size=8,
        hard_vocab_limit=False,
        normalization_rule_name="nmt_nfkc",
        minloglevel=2,
    )
    model = messages.ModelProto()
    model.ParseFromString(model_file.getvalue())
    return bytes(model.normalizer_spec.precompiled_charsmap)


def convert_tokenizer(tokenizer: Path) -> bytes:
    """Convert XLM-R's tokenizer.json to a sentencepiece ``.model``."""
    content = json.loads(tokenizer.read_bytes())
    vocabulary = [(name, 0.0) for name in SPECIALS] + content["model"]["vocab"][4:-1]  # the last one is <mask>
    kinds = ("UNKNOWN", "CONTROL", "CONTROL")
    model = messages.ModelProto()
    for index, (word_piece, score) in enumerate(vocabulary):
        kind = kinds[index] if index < len(kinds) else "NORMAL"
        model.pieces.add(piece=word_piece, score=score, type=messages.ModelProto.SentencePiece.Type.Value(kind))
    model.trainer_spec.model_type = messages.TrainerSpec.UNIGRAM
    model.trainer_spec.vocab_size = len(vocabulary)
    model.normalizer_spec.name = "nmt_nfkc"
    model.normalizer_spec.precompiled_charsmap = base64.b64decode(content["normalizer"]["precompiled_charsmap"])
    return bytes(model.SerializeToString())


if __name__ == "__main__":
    if sys.argv[1] == "map":
        sys.stdout.buffer.write(read_map())
    else:
        processor = sentencepiece.SentencePieceProcessor(model_proto=convert_tokenizer(Path(sys.argv[2])))
        texts = json.load(sys.stdin)
        print(json.dumps([[id_ + 1 if id_ else 3 for id_ in ids] for ids in processor.encode(texts)]))
