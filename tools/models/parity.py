"""Which checkpoints osrerank scores exactly as the library that saved them, as a page: docs/research/parity.md.

    python -m tools.models.parity PYTHON... > docs/research/parity.md

where each PYTHON has a version of sentence-transformers or PyLate that is to save `saved_forms`. The command fails if a
checkpoint is neither scored exactly nor refused.
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
from tools.models import saved_forms
from tools.models.saved_forms import DOCUMENTS, QUERY

BOUND = 1e-5
"""Of the difference of a cosine, or of a logit as a part of the greatest one."""
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


def save(python: str, folder: Path) -> None:
    """Have an interpreter save the forms into a folder."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    folder.mkdir(parents=True)
    subprocess.run(  # noqa: S603 - an interpreter that the caller names
        [python, "-W", "ignore", str(Path(saved_forms.__file__)), str(folder)],
        env=environment,
        check=True,
        stderr=subprocess.PIPE,
    )


def compared(folder: Path, saved: Mapping[str, object]) -> float | str:
    """Return the largest difference of a checkpoint's scores, or the sentence that refuses it.

    Args:
        folder: the checkpoint's.
        saved: its ``scores``, and its ``pooling`` if it is an encoder.
    """
    made = folder.with_name(f"{folder.name}-made")
    try:
        export_model(folder, made, ExportOptions(precision="fp32", keep_weights=True))
        theirs = np.array(saved["scores"], dtype=np.float64)
        unit = 1.0 if saved["pooling"] else float(np.abs(theirs).max())
        return max(float(np.abs(scores(made, backend) - theirs).max()) / unit for backend in BACKENDS)
    except ModelLoadError as error:
        return str(error).replace(f"{folder}/", "").replace(str(folder), "the directory")


def scores(directory: Path, backend: str) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """Return the cosine of the query with each document, late interaction's mean of cosines, or each one's logit."""
    with closing(load_model(str(directory), backend=backend, threads=1)) as model:
        if is_encoder(model):
            query, rows = model.encode([QUERY], "query").rows[0], model.encode(list(DOCUMENTS), "document").rows
            fitted = model.card.calibration
            return (model.similarity(query, rows).astype(np.float64) - fitted.offset) / fitted.scale
        found = model.score(QUERY, DOCUMENTS, [(at,) for at in range(len(DOCUMENTS))])
        return found.values.astype(np.float64)


def table(folders: Sequence[Path]) -> tuple[str, bool]:
    """Return the page of some versions' folders, and whether all is exact or refused."""
    versions = {}
    rows: dict[str, dict[Path, str]] = {}
    is_right = True
    for folder in folders:
        found = json.loads((folder / "versions.json").read_text("utf-8"))
        versions[folder] = " with ".join(f"{name} {version}" for name, version in found.items())
        for file in sorted(folder.glob("[0-9]*.json")):
            saved = json.loads(file.read_text("utf-8"))
            outcome = compared(folder / file.stem, saved)
            is_exact = isinstance(outcome, float) and outcome < BOUND
            is_right &= is_exact or isinstance(outcome, str)
            words = f"refused: {outcome}" if isinstance(outcome, str) else f"{outcome:.0e}"
            words = words if is_exact or isinstance(outcome, str) else f"**{words}**"
            rows.setdefault(saved["name"], {})[folder] = words
    lines = [HEAD.format(versions=" and ".join(versions.values()))]
    lines += [f"| checkpoint | {' | '.join(versions.values())} |", f"|---{'|---' * len(versions)}|"]
    lines += [f"| {name} | {' | '.join(words.get(folder, '') for folder in folders)} |" for name, words in rows.items()]
    return "\n".join(lines), is_right


def main() -> None:
    """Print the page."""
    with tempfile.TemporaryDirectory() as parent:
        folders = [Path(parent) / str(number) for number in range(1, len(sys.argv))]
        for python, folder in zip(sys.argv[1:], folders, strict=True):
            save(python, folder)
        page, is_right = table(folders)
    print(page)
    sys.exit(not is_right)


if __name__ == "__main__":
    main()
