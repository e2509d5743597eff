"""Make the shipped model ``osrerank/mono`` from the published weights of all-MiniLM-L6-v2; nothing is trained.

python docs/examples/squad_candidates.py train-v1.1.json candidates.jsonl qrels.txt --questions 300 --depth 20
python docs/examples/shipped_mono.py all-MiniLM-L6-v2 osrerank/models/mono candidates.jsonl qrels.txt
"""

import argparse
from pathlib import Path

from osrerank.training.export import ExportOptions, export_model

PROVENANCE = {
    "base_model": "sentence-transformers/all-MiniLM-L6-v2, from nreimers/MiniLM-L6-H384-uncased",
    "base_data": "1,170,060,424 pairs, by its own card: Reddit comments, S2ORC, WikiAnswers, PAQ, Stack Exchange, "
    "MS MARCO, GOOAQ, Yahoo Answers, Code Search, COCO, SPECTER, SearchQA, ELI5, Flickr30k, AllNLI, Sentence "
    "Compression, Wikihow, Altlex, Quora, Simple Wikipedia, Natural Questions, SQuAD 2.0, TriviaQA",
    "our_training": "none: the weights are the base model's, read in the layout cross-bias",
    "recipe": "query rows see the document with g = -2, document rows do not see the query, t = 20; dynamic int8 per "
    "channel with 7-bit weights, word embeddings int8 with a scale for each row",
    "choice_of_g": "g = -2 was chosen on TREC DL 2019 passages: the measure on that set is optimistic",
    "calibration_data": "300 SQuAD v1.1 train questions (seed 1), BM25's top 20 of the train paragraphs, the "
    "question's own paragraph relevant; the base model has seen SQuAD",
    "first_pass_weight": "7, the best nDCG@10 averaged over 200 SQuAD train questions (seed 1, BM25's top 30) and 100 "
    "SciFact train claims (seed 1, top 50), by docs/examples/choose_first_pass_weight.py",
    "licence": "Apache-2.0",
}


def main() -> None:
    """Export, quantise, calibrate."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("source", "output", "candidates", "qrels"):
        parser.add_argument(name, type=Path)
    paths = parser.parse_args()
    options = ExportOptions(
        name="osrerank/mono",
        layout="cross-bias",
        precision="int8",
        first_pass_weight=7.0,
        padded=True,
        provenance=PROVENANCE,
    )
    export_model(paths.source, paths.output, options, calibrate=(paths.candidates, paths.qrels))


if __name__ == "__main__":
    main()
