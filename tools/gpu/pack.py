"""Pack the luggage for a borrowed GPU: code, weights, texts, wheels, in parts that may each travel at once.

python -m tools.gpu.pack .gpu --models MODELS --data DATA        # everything
python -m tools.gpu.pack build/luggage --tiny --no-wheels        # what the rehearsal needs, from the package alone

MODELS has the start of the training, e5-small-v2, in a folder of its own; DATA has ``squad``, ``nq-open-oracle``,
``msmarco-dl19`` (orders are compared on it) and ``msmarco-dl21`` (weights are chosen on it). Without
them, the package's sample takes their place. git must ignore the output: it is in no repository and in no package.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from osrerank.scoring.inputs import InputBuilder
from osrerank.scoring.model_files import read_card
from tools.gpu.candidates import List, question_lists, run_lists, sample_lists
from tools.gpu.luggage import divide, write_halves, write_lists, write_sequences
from tools.gpu.networks import SHAPES, Family, make
from tools.gpu.plan import Limits, Plan

ROOT = Path(__file__).resolve().parents[2]
CODE = ("osrerank", "index_loaders", "workers", "tools/gpu", "pyproject.toml")
LEFT_OUT = ("osrerank/models/",)
MONO = ROOT / "osrerank" / "models" / "mono"
STARTER = "start.py"
START_MODEL = "e5-small-v2"
QUESTIONS, TRAINING_DEPTH = 38_600, 12
"""Ten times the 33,000 sequences that the first model in the package learnt from, in lists of eight."""


def git(*arguments: str) -> list[str]:
    """Return the names that git lists in this checkout."""
    command = ["git", "-C", str(ROOT), arguments[0], "-z", *arguments[1:]]
    found = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 - git, with names of our own
    return [name for name in found.stdout.split("\0") if name]


def add_code(folder: Path) -> None:
    """Copy the code as it is now, committed or not, without the models."""
    for name in git("ls-files", "--cached", "--others", "--exclude-standard", "--", *CODE):
        if (ROOT / name).is_file() and not name.startswith(LEFT_OUT):
            (folder / "code" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / "code" / name)


def add_mono(folder: Path) -> None:
    """Copy the model in the package as it is: an int8 graph, from which torch reads the weights."""
    shutil.copytree(MONO, folder / "models" / "mono", ignore=shutil.ignore_patterns("*.md", "__pycache__"))


def add_texts(folder: Path, lists: Sequence[List], *, max_tokens: int) -> None:
    """Write candidates' sequences as a classifier reads them, and as mono does."""
    (folder / "texts").mkdir(parents=True)
    card = read_card(MONO)
    for name, layout in (("standard", {"layout": "standard", "head": "logit1"}), ("joined", {})):
        whole = {**card.to_json(), **layout, "max_tokens": max_tokens, "max_query_tokens": 64}
        builder = _builder(whole)
        found = []
        for query, texts, _ in lists:
            pieces = builder.query(query)
            found.append([builder.mono(pieces, one) for one in builder.documents(texts, pieces)])
        write_sequences(folder / "texts" / f"{name}.npz", found)


def _builder(card: Mapping[str, Any]) -> InputBuilder:
    """Return a builder with the package's tokenizer and another card."""
    with tempfile.TemporaryDirectory() as made:
        for name in ("tokenizer.json", "config.json"):
            shutil.copyfile(MONO / name, Path(made) / name)
        (Path(made) / "osrerank.json").write_text(json.dumps(card), encoding="utf-8")
        (Path(made) / "model.safetensors").touch()
        return InputBuilder.load(Path(made), read_card(Path(made)))


def add_start(folder: Path, start: Path | None) -> None:
    """Pack the model that the training starts from: the one given, or a random one."""
    with tempfile.TemporaryDirectory() as made:
        bare = Family("bert", "BertModel")  # as bi-encoders are published
        source = start or make(Path(made) / "start", SHAPES["tiny"], MONO / "tokenizer.json", bare)
        target = folder / "models" / "start"
        target.mkdir(parents=True)
        for name in ("config.json", "tokenizer.json"):
            shutil.copyfile(source / name, target / name)
        write_halves(source / "model.safetensors", target / "model.halves.zip")


def add_lists(folder: Path, training: Sequence[List], development: Sequence[List]) -> None:
    """Write what is learnt from, and what the weights are chosen by."""
    (folder / "training").mkdir(parents=True)
    write_lists(folder / "training" / "lists.zip", training)
    write_lists(folder / "training" / "development.zip", development)


def add_wheels(folder: Path, wheels: Mapping[str, Any]) -> None:
    """Download the wheels that the machine's Python lacks, in the versions of ``constraints.txt``."""
    known = dict(
        line.strip().split("==") for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines() if "==" in line
    )
    versions = {name.lower().replace("_", "-"): version for name, version in known.items()}
    packages = []
    for name in wheels["packages"]:
        version = versions.get(name.lower().replace("_", "-"))
        packages.append(f"{name}=={version}" if version else name)
    platforms = [part for platform in wheels["platforms"] for part in ("--platform", platform)]
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-qq",
        "--disable-pip-version-check",
        "--no-deps",
        "--only-binary=:all:",
    ]
    command += [
        "--python-version",
        wheels["python"],
        "--implementation",
        "cp",
        *platforms,
        "--dest",
        str(folder / "wheels"),
    ]
    subprocess.run([*command, *packages], check=True)  # noqa: S603 - pip, with names of our own


def write_parts(whole: Path, output: Path, limits: Limits) -> list[dict[str, int]]:
    """Move the files into a folder for each part, with the program that begins; return each part's files with bytes."""
    order = ("code", "models/mono", "texts", "wheels", "training", "models/start")
    names = [
        str(file.relative_to(whole)) for first in order for file in sorted((whole / first).rglob("*")) if file.is_file()
    ]
    sizes = {name: (whole / name).stat().st_size for name in names}
    starter = Path(__file__).with_name(STARTER)
    parts = []
    for number, part in enumerate(divide(sizes, limits.part_bytes - starter.stat().st_size), start=1):
        for name in part:
            target = output / str(number) / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(whole / name, target)
        shutil.copyfile(starter, output / str(number) / STARTER)
        parts.append({name: sizes[name] for name in part} | {STARTER: starter.stat().st_size})
    return parts


def size_lines(parts: Sequence[Mapping[str, int]], limits: Limits) -> Iterator[str]:
    """Yield the luggage's size by part and file; files of code are one line."""
    for number, part in enumerate(parts, start=1):
        total = sum(part.values())
        yield f"part {number}: {total:,} bytes of {limits.part_bytes:,}"
        code = [size for name, size in part.items() if name.startswith("code/")]
        if code:
            yield f"  {sum(code):>12,}  code, {len(code)} files"
        yield from (f"  {size:>12,}  {name}" for name, size in part.items() if not name.startswith("code/"))


def travel_lines(limits: Limits, largest: int) -> Iterator[str]:
    """Yield what of this checkout would travel beside the luggage, and how to leave it out."""
    tracked = sum((ROOT / name).stat().st_size for name in git("ls-files") if (ROOT / name).is_file())
    yield f"tracked files of this checkout: {tracked:,} bytes"
    if tracked + largest > limits.part_bytes:
        yield "that and a part are too large together, so leave the checkout's files behind while the luggage travels:"
        yield "  git sparse-checkout set --no-cone /.gitignore     # the parts have the code; nothing is lost"
        yield "  git sparse-checkout disable                       # afterwards"


def pack(output: Path, given: argparse.Namespace) -> list[dict[str, int]]:
    """Make all of it; return each part's files with bytes."""
    plan, data = Plan.read(), given.data
    if output.exists():
        raise SystemExit(f"{output} exists; remove it, or name another folder")
    with tempfile.TemporaryDirectory(dir=_made(output.parent)) as folder:
        whole = Path(folder)
        add_code(whole)
        add_mono(whole)
        few = (4, 8) if given.tiny else (43, 100)
        orders = run_lists(data / "msmarco-dl19", 100) if data else sample_lists(ROOT, *few)
        add_texts(whole, orders, max_tokens=128 if given.tiny else 512)
        development = run_lists(data / "msmarco-dl21", 100) if data else orders
        training = list(question_lists(data, given.questions, TRAINING_DEPTH)) if data else sample_lists(ROOT, 48, 12)
        add_lists(whole, training, development)
        add_start(whole, given.models / START_MODEL if given.models else None)
        if not given.no_wheels:
            add_wheels(whole, plan.wheels)
        return write_parts(whole, output, plan.limits)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def main() -> None:
    """Pack, and print what travels."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--models", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--questions", type=int, default=QUESTIONS, help="of SQuAD, to learn from")
    parser.add_argument("--tiny", action="store_true", help="for the rehearsal")
    parser.add_argument("--no-wheels", action="store_true", help="download nothing")
    given = parser.parse_args()
    limits = Plan.read().limits
    parts = pack(given.output.resolve(), given)
    print("\n".join([*size_lines(parts, limits), *travel_lines(limits, max(sum(part.values()) for part in parts))]))


if __name__ == "__main__":
    main()
