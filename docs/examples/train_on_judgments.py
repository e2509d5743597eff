"""Train the model in the package on judgments of your own, and keep half of what it knew.

python docs/examples/train_on_judgments.py corpus.jsonl queries.tsv qrels.txt ours --steps 200

CORPUS has JSON lines ``{"id", "title"?, "text"}``. BM25 finds what is not relevant to learn from. It needs
``pip install 'osrerank[torch,onnx]'``; afterwards: ``connect(..., model="ours")`` or ``osrerank --model ours search``.
"""

import argparse
import tempfile
from pathlib import Path

from osrerank.export.export_model import ExportOptions, export_model
from osrerank.formats.lines import numbered_objects
from osrerank.formats.topics import read_queries
from osrerank.formats.trec import read_qrels
from osrerank.scoring.locate import locate
from osrerank.training.examples.first_pass import from_index, temporary_search
from osrerank.training.examples.lists import text_of, write_examples
from osrerank.training.examples.sources import open_source
from osrerank.training.fit import TrainingRequest, train
from osrerank.training.recipes import Recipe
from osrerank.training.weights.averaging import average


def main() -> None:
    """Write examples, train, average with the start, and export to int8."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("corpus", "queries", "qrels", "output"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    start = locate("osrerank/e5-small")
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        documents = {str(line["id"]): text_of(line) for _number, line in numbered_objects(options.corpus)}
        with temporary_search(documents.items(), 30) as search:
            examples = from_index(search, read_queries(options.queries), read_qrels(options.qrels))
            print(write_examples(work / "examples.jsonl", examples), "queries to learn from")
        changes = {"steps": options.steps, "batch": 32, "negatives": 7, "rate": 2e-5, "freeze": "embeddings"}
        data = [open_source({"examples": work / "examples.jsonl"})]
        train(TrainingRequest(start, work / "tuned", Recipe.of(changes, "modern"), data, report=print))
        average([work / "tuned", start], [0.5, 0.5], work / "averaged")
        export_model(work / "averaged", options.output, ExportOptions(precision="int8"))


if __name__ == "__main__":
    main()
