"""Compare osrerank's scores with those of the libraries that saved the checkpoints, for docs/research/parity.md.

    python -m tools.models.parity PYTHON... > docs/research/parity.md

Each PYTHON is an interpreter with a version of sentence-transformers or PyLate, which saves the checkpoints of
`saved_forms`. The command fails if a checkpoint is neither scored exactly nor refused.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from osrerank.errors import ModelLoadError
from osrerank.export.export_model import ExportOptions, export_model
from osrerank.scoring.registry import load_model
from osrerank.types import is_encoder
from osrerank.types.scores import single_documents
from tools.models import saved_forms
from tools.models.saved_forms import DOCUMENTS, QUERY

MAX_DIFFERENCE = 1e-5
"""The maximum difference of a cosine, or of a logit relative to the largest one, that counts as exact."""
BACKENDS = ("onnx", "torch")
HEAD = """# Parity with the libraries

Each row is a tiny random checkpoint that {versions} saved.
The number is the largest difference between osrerank's scores in fp32, with either backend, and the library's:
of cosines, of late interaction's means of cosines, or of logits as a part of the greatest one. A checkpoint that
osrerank does not score exactly is refused, with the sentence in its row. One of the texts is longer than the models
read.

```sh
make parity      # makes the environments, saves the checkpoints, and writes this page
```
"""


def save_checkpoints(python: str, folder: Path) -> None:
    """Save the checkpoints into a folder with another interpreter."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    folder.mkdir(parents=True)
    subprocess.run(  # noqa: S603 - an interpreter that the caller names
        [python, "-W", "ignore", str(Path(saved_forms.__file__)), str(folder)],
        env=environment,
        check=True,
        stderr=subprocess.PIPE,
    )


def compare(folder: Path, expected: Mapping[str, object]) -> float | str:
    """Return the largest difference of a checkpoint's scores, or the error that refuses the checkpoint.

    Args:
        folder: the folder of the checkpoint.
        expected: the library's ``scores``, and the ``pooling`` of an encoder.
    """
    exported = folder.with_name(f"{folder.name}-made")
    try:
        export_model(folder, exported, ExportOptions(precision="fp32", keep_weights=True))
        expected_scores = np.array(expected["scores"], dtype=np.float64)
        unit = 1.0 if expected["pooling"] else float(np.abs(expected_scores).max())
        differences = (np.abs(compute_scores(exported, backend) - expected_scores) for backend in BACKENDS)
        return max(float(difference.max()) / unit for difference in differences)
    except ModelLoadError as error:
        return str(error).replace(f"{folder}/", "").replace(str(folder), "the directory")


def compute_scores(directory: Path, backend: str) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """Return the score of each document: a cosine, late interaction's mean of cosines, or a logit."""
    with closing(load_model(str(directory), backend=backend, threads=1)) as model:
        if is_encoder(model):
            query, rows = model.encode([QUERY], "query").rows[0], model.encode(list(DOCUMENTS), "document").rows
            calibration = model.card.calibration
            return (model.similarity(query, rows).astype(np.float64) - calibration.offset) / calibration.scale
        scores = model.score(QUERY, DOCUMENTS, single_documents(len(DOCUMENTS)))
        return scores.values.astype(np.float64)


def render_page(folders: Sequence[Path]) -> tuple[str, bool]:
    """Return the page, and whether each checkpoint is scored exactly or refused; a folder is of one version."""
    versions = {}
    rows: dict[str, dict[Path, str]] = {}
    is_valid = True
    for folder in folders:
        libraries = json.loads((folder / "versions.json").read_text("utf-8"))
        versions[folder] = " with ".join(f"{name} {version}" for name, version in libraries.items())
        for file in sorted(folder.glob("[0-9]*.json")):
            expected = json.loads(file.read_text("utf-8"))
            outcome = compare(folder / file.stem, expected)
            if isinstance(outcome, str):
                cell = f"refused: {outcome}"
            elif outcome < MAX_DIFFERENCE:
                cell = f"{outcome:.0e}"
            else:
                cell = f"**{outcome:.0e}**"
                is_valid = False
            rows.setdefault(expected["name"], {})[folder] = cell
    lines = [HEAD.format(versions=" and ".join(versions.values()))]
    lines += [f"| checkpoint | {' | '.join(versions.values())} |", f"|---{'|---' * len(versions)}|"]
    lines += [f"| {name} | {' | '.join(cells.get(folder, '') for folder in folders)} |" for name, cells in rows.items()]
    return "\n".join(lines), is_valid


def main() -> None:
    """Print the page."""
    with tempfile.TemporaryDirectory() as parent:
        folders = [Path(parent) / str(number) for number in range(1, len(sys.argv))]
        for python, folder in zip(sys.argv[1:], folders, strict=True):
            save_checkpoints(python, folder)
        page, is_valid = render_page(folders)
    print(page)
    sys.exit(not is_valid)


if __name__ == "__main__":
    main()
