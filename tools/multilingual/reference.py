"""What sentencepiece has and gives, in an environment of its own, with sentencepiece alone.

python reference.py map > MAP          its map nmt_nfkc, which XLM-R normalises texts by
python reference.py ids TOKENIZER      the ids of each text of a JSON list on the standard input, by the pieces of a
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
"""The first three pieces of a model; XLM-R has others in their places, so that its ids are one higher."""


def nmt_nfkc() -> bytes:
    """Return the map, which any model that sentencepiece trains holds."""
    trained = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b c"]),
        model_writer=trained,
        vocab_size=8,
        hard_vocab_limit=False,
        normalization_rule_name="nmt_nfkc",
        minloglevel=2,
    )
    model = messages.ModelProto()
    model.ParseFromString(trained.getvalue())
    return bytes(model.normalizer_spec.precompiled_charsmap)


def model_of(tokenizer: Path) -> bytes:
    """Return the pieces, probabilities and map of a tokenizer of XLM-R's as sentencepiece's ``.model``."""
    content = json.loads(tokenizer.read_bytes())
    pieces = [(name, 0.0) for name in SPECIALS] + content["model"]["vocab"][4:-1]  # the last one is <mask>
    model = messages.ModelProto()
    for at, (piece, score) in enumerate(pieces):
        kind = "NORMAL" if at >= len(SPECIALS) else "CONTROL" if at else "UNKNOWN"
        model.pieces.add(piece=piece, score=score, type=messages.ModelProto.SentencePiece.Type.Value(kind))
    model.trainer_spec.model_type = messages.TrainerSpec.UNIGRAM
    model.trainer_spec.vocab_size = len(pieces)
    model.normalizer_spec.name = "nmt_nfkc"
    model.normalizer_spec.precompiled_charsmap = base64.b64decode(content["normalizer"]["precompiled_charsmap"])
    return bytes(model.SerializeToString())


if __name__ == "__main__":
    if sys.argv[1] == "map":
        sys.stdout.buffer.write(nmt_nfkc())
    else:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model_of(Path(sys.argv[2])))
        texts = json.load(sys.stdin)
        print(json.dumps([[at + 1 if at else 3 for at in ids] for ids in processor.encode(texts)]))
