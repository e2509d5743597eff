"""``osrerank bench``: throughput side by side with other libraries, on the same pairs in one run."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from osrerank.cli.options import wants_json
from osrerank.errors import ConfigError

if TYPE_CHECKING:
    from osrerank.bench.contenders import Ours
    from osrerank.bench.workload import BenchQuery
    from osrerank.types import Qrels

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command()
@click.option("--candidates", type=FILE, help="JSON lines, as of `osrerank rerank`.  [default: invented texts]")
@click.option("--qrels", type=FILE, help="TREC judgments of the candidates, for nDCG@10.")
@click.option(
    "--words", type=click.IntRange(1), multiple=True, help="Mean words of invented documents.  [default: 50, 250]"
)
@click.option("--queries", type=click.IntRange(0), default=6, show_default=True, help="So many queries; 0 for all.")
@click.option("--depth", type=click.IntRange(1), default=50, show_default=True, help="Documents of each query.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Turns; medians are reported.")
@click.option("--threads", type=click.IntRange(0), default=0, help="CPU threads of each.  [default: the usable cores]")
@click.option(
    "--budget-tokens", type=click.IntRange(1), multiple=True, help="Batches of this many tokens; a row for each."
)
@click.option(
    "--checkpoint", type=FOLDER, help="Classifier with safetensors: exported by us, given to the peers as it is."
)
@click.option("--beside", multiple=True, help="Other models to measure in turn with --model's; may be repeated.")
@click.option(
    "--vectors",
    type=click.Choice(["standard", "exact"]),
    help="Measure with document vectors of this profile.",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(8),
    help="Pairs are cut at this length, ours and the peers'.  [default: the models']",
)
@click.option("--peers", type=FOLDER, help="With --checkpoint: measure the libraries of this environment too.")
@click.option(
    "--install-peers",
    type=click.Path(file_okay=False, path_type=Path),
    help="Make an environment for --peers here, and stop.",
)
@click.pass_context
def bench(context: click.Context, /, **options: Any) -> None:
    """Measure pairs per second, by itself or side by side with other libraries.

    \b
    osrerank bench
    osrerank --model osrerank/e5-small bench --beside osrerank/minilm-l6
    osrerank bench --install-peers peers
    osrerank bench --checkpoint my-classifier --peers peers --candidates candidates.jsonl --qrels qrels.txt
    osrerank bench --vectors standard --checkpoint my-classifier --candidates candidates.jsonl
    """
    import tempfile  # noqa: PLC0415 - only when the command runs

    if options["install_peers"]:
        _install(context, options["install_peers"])
        return
    with tempfile.TemporaryDirectory() as folder:
        if options["vectors"]:
            _show_vectors(context, _vectors_measured(context.obj, options, Path(folder)))
            return
        report = _measured(context.obj, options, Path(folder))
    if wants_json(context):
        click.echo(json.dumps(report, indent=2))
    else:
        _show(report)


def _install(context: click.Context, directory: Path) -> None:
    from osrerank.bench.install import install_peers  # noqa: PLC0415 - only when it is asked for

    versions = install_peers(directory, lambda line: click.echo(line, err=True))
    if wants_json(context):
        click.echo(json.dumps({"environment": str(directory), "versions": dict(versions)}, indent=2))
        return
    click.echo("\n".join(f"{name} {version}" for name, version in versions.items()))
    click.echo(f"the peers are in {directory}: osrerank bench --checkpoint CLASSIFIER --peers {directory}")


def _measured(given: dict[str, Any], options: dict[str, Any], folder: Path) -> dict[str, Any]:
    from osrerank.bench.machine import machine  # noqa: PLC0415 - its twin
    from osrerank.bench.measure import lengths_of, rows, take_turns  # noqa: PLC0415 - numpy

    workloads, qrels = _workloads(options), _qrels(options)
    contenders, missing = _contenders(given, options, folder)
    first = contenders[0]
    found = []
    try:
        for label, tasks in workloads.items():
            able = _at_their_best(contenders, tasks, missing)
            lengths = lengths_of(first.builder, tasks)
            timings = take_turns(able, tasks, options["rounds"])
            reference = _reference(able, set(options["beside"]))
            made = rows(able, tasks, timings, lengths=lengths, reference=reference, qrels=qrels)
            found += [{**row, "pairs": label} for row in made]
    finally:
        for one in contenders:
            one.close()
    return {"machine": machine(), "rounds": options["rounds"], "rows": found, "missing": missing}


def _vectors_measured(given: dict[str, Any], options: dict[str, Any], folder: Path) -> dict[str, Any]:
    from osrerank.bench.machine import machine  # noqa: PLC0415 - its twin
    from osrerank.bench.vectors import measure_vectors  # noqa: PLC0415 - numpy
    from osrerank.settings import Settings  # noqa: PLC0415 - pydantic

    model = Settings.load(model=given["model"]).model
    measured = {"profile": options["vectors"], "rounds": options["rounds"], "threads": options["threads"]}
    found: dict[str, Any] = {"machine": machine(), "rounds": options["rounds"], "rows": [], "beside": [], "missing": {}}
    for number, (label, tasks) in enumerate(_workloads(options).items()):
        subfolder = folder / str(number)
        row = measure_vectors(model, tasks, subfolder / "vectors", **measured)
        found["rows"].append({"pairs": label, **row})
        beside, found["missing"] = _beside_vectors(model, tasks, options, subfolder)
        found["beside"] += [{**row, "pairs": label} for row in beside]
    return found


def _beside_vectors(
    model: str, tasks: "list[BenchQuery]", options: dict[str, Any], folder: Path
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return the rows of every storage of vectors, of whole pairs, and with --checkpoint of other libraries."""
    from osrerank._platform import usable_cores  # noqa: PLC0415 - its twin
    from osrerank.bench.contenders import Ours  # noqa: PLC0415 - numpy
    from osrerank.bench.measure import lengths_of, rows, take_turns  # noqa: PLC0415 - its twin
    from osrerank.bench.vectors import KnownVectors, storages  # noqa: PLC0415 - its twin
    from osrerank.settings import Settings  # noqa: PLC0415 - pydantic

    threads = options["threads"] or usable_cores()
    stores = storages(Settings.load(), folder / "beside", options["vectors"])
    ours: list[Any] = [KnownVectors(model, tasks, vectors, threads=threads) for vectors in stores]
    cut = options["max_tokens"] or 0
    whole = Ours(model, threads=threads, max_tokens=cut)
    named = _exported(options["checkpoint"], folder)
    exported = [
        Ours(name, label=label, backend=backend, threads=threads, max_tokens=cut) for name, label, backend in named
    ]
    peers, missing = _peers(options, exported, threads)
    every = [*ours, whole, *exported, *peers]
    try:
        contenders = _at_their_best(every, tasks, missing)
        timings = take_turns(contenders, tasks, options["rounds"])
        lengths = lengths_of(whole.builder, tasks)
        qrels = _qrels(options)
        return rows(contenders, tasks, timings, lengths=lengths, reference=whole.name, qrels=qrels), missing
    finally:
        for one in every:
            one.close()


def _show_vectors(context: click.Context, report: dict[str, Any]) -> None:
    if wants_json(context):
        click.echo(json.dumps(report, indent=2))
        return
    from osrerank.cli.tables import console, table  # noqa: PLC0415 - rich

    names = [name for name in report["rows"][0] if name not in ("model", "pairs", "profile")]
    for row in report["rows"]:
        click.echo(f"{row['model']}, vectors {row['profile']}, {row['pairs']}")
        console().print(table(["", ""], [[name.replace("_", " "), f"{row[name]:,.2f}"] for name in names]))
    _show({**report, "rows": report["beside"]})


def _contenders(given: dict[str, Any], options: dict[str, Any], folder: Path) -> tuple[Any, dict[str, str]]:
    from osrerank._platform import usable_cores  # noqa: PLC0415 - its twin
    from osrerank.bench.contenders import Ours  # noqa: PLC0415 - numpy
    from osrerank.settings import Settings  # noqa: PLC0415 - pydantic

    settings = Settings.load(model=given["model"], backend=given["backend"], threads=options["threads"] or None)
    threads = settings.threads or usable_cores()
    budgets, cut = options["budget_tokens"] or (0,), options["max_tokens"] or 0
    exported = _exported(options["checkpoint"], folder)
    named = dict.fromkeys((settings.model, *options["beside"]))
    ours: list[Any] = [
        Ours(model, label=label, backend=backend, threads=threads, budget_tokens=budget, max_tokens=cut)
        for model, label, backend in [*exported, *((name, "", settings.backend) for name in named)]
        for budget in budgets
    ]
    peers, missing = _peers(options, ours, threads)
    return [*ours, *peers], missing


def _peers(options: dict[str, Any], ours: "Sequence[Ours]", threads: int) -> tuple[list[Any], dict[str, str]]:
    """Return the other libraries with --checkpoint's weights, cut where its export cuts, and why some are missing."""
    if options["peers"] is None or options["checkpoint"] is None:
        reason = "they need --peers, an environment of osrerank bench --install-peers, and --checkpoint, a classifier"
        return [], {"peers": f"{reason}'s directory with safetensors"}
    from osrerank.bench.peers import Shared, make_peers  # noqa: PLC0415 - only when they are asked for

    shared = Shared(options["peers"], threads=threads, max_tokens=ours[0].builder.max_tokens)
    peers, missing = make_peers(options["checkpoint"], shared)
    return list(peers), missing


def _at_their_best(contenders: "Sequence[Any]", tasks: "Sequence[BenchQuery]", missing: dict[str, str]) -> list[Any]:
    """Give each peer its best batch size; return the contenders without those that fail, which become missing."""
    from osrerank.bench.peers import Peer, choose_batch  # noqa: PLC0415 - only with peers
    from osrerank.errors import InferenceError  # noqa: PLC0415 - its twin

    able = []
    for one in contenders:
        if isinstance(one, Peer):
            try:
                choose_batch(one, tasks[0])
            except InferenceError as error:
                missing[one.name] = str(error)
                continue
        able.append(one)
    return able


def _qrels(options: dict[str, Any]) -> "Qrels | None":
    from osrerank.formats.trec import read_qrels  # noqa: PLC0415 - numpy

    return read_qrels(options["qrels"]) if options["qrels"] else None


def _exported(checkpoint: Path | None, folder: Path) -> list[tuple[str, str, str]]:
    """Export a checkpoint in both precisions; return model, label and backend of each."""
    if checkpoint is None:
        return []
    from osrerank.export.export_model import ExportOptions, export_model  # noqa: PLC0415 - imports numpy and more

    made = []
    for precision in ("fp32", "int8"):
        export_model(checkpoint, folder / precision, ExportOptions(name=checkpoint.name, precision=precision))
        made.append((str(folder / precision), checkpoint.name, "onnx"))
    return made


def _workloads(options: dict[str, Any]) -> dict[str, "list[BenchQuery]"]:
    from osrerank.bench.workload import from_candidates, synthetic  # noqa: PLC0415 - numpy

    size = {"queries": options["queries"], "depth": options["depth"]}
    if options["candidates"]:
        return {options["candidates"].name: from_candidates(options["candidates"], **size)}
    if options["qrels"]:
        raise ConfigError(
            "--qrels needs --candidates: invented texts have no judgments", setting="qrels", source="flag"
        )
    size["queries"] = size["queries"] or 6
    return {f"invented, {words} words": synthetic(words, **size) for words in options["words"] or (50, 250)}


def _reference(contenders: "Sequence[Ours]", beside: set[str]) -> str:
    """Return the name of the row whose order the others are compared with: fp32, transformers' own before ours.

    Models given with --beside are never the reference.
    """
    names = [one.name for one in contenders if getattr(one, "model", "") not in beside] or [contenders[0].name]
    return min(names, key=lambda name: (not name.startswith("transformers"), "fp32" not in name))


def _show(report: dict[str, Any]) -> None:
    from osrerank.cli.tables import console, table  # noqa: PLC0415 - rich

    columns = [
        "",
        "pairs",
        "tokens",
        "pairs/s",
        "a cpu-s",
        "tokens/s",
        "of peak",
        "tokenise",
        "compute",
        "wait",
        "padding",
    ]
    console().print(table([*columns, "nDCG@10", "top 10"], [_cells(row) for row in report["rows"]]))
    for name, reason in report["missing"].items():
        click.echo(f"missing: {name}: {reason}")
    _show_machine(report["machine"])


def _show_machine(machine: dict[str, Any]) -> None:
    click.echo(f"{machine['cpu']}, {machine['cores']} cores; load {machine['load']}; {machine['versions']}")


def _cells(row: dict[str, Any]) -> list[str]:
    shares = (
        _percent(row.get(f"{name}"))
        for name in ("mfu", "tokenise_share", "compute_share", "wait_share", "padding_waste")
    )
    quality = "" if row["ndcg@10"] is None else f"{row['ndcg@10']:.4f}"
    speed = (
        f"{row['mean_tokens']:.0f}",
        f"{row['pairs_per_s']:.1f}",
        f"{row['pairs_per_cpu_s']:.1f}",
        f"{row['tokens_per_s']:.0f}",
    )
    return [f"{row['name']} ({row['version']})", row["pairs"], *speed, *shares, quality, f"{row['top10_shared']:.3f}"]


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f} %"
