"""What travels to a borrowed GPU and what comes back: packed, divided, run once each, reported from the JSON alone."""

import json
import subprocess
import sys
import time
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")  # the steps' extra
from safetensors.numpy import load_file, save_file

from osrerank.scoring.inputs import Tokens
from osrerank.scoring.registry import load_scorer
from tests.servers import ROOT
from tools.gpu import luggage, report
from tools.gpu.pack import divide, write_parts
from tools.gpu.plan import Limits, Plan
from tools.gpu.run import Folders, reason_to_skip, run, run_step
from tools.gpu.task import Part, Results, Task, run_parts

LIMITS = Limits(command_s=600, total_s=1800, part_bytes=10_000, file_bytes=100_000, files=8)
MACHINE = {"device": "made", "driver": "1", "date": "2026-01-01"}


def task(folder: Path, *, left_s: float = 60.0, tiny: bool = False) -> Task:
    return Task(folder, folder, folder, tiny, time.monotonic() + left_s)


def measured(tmp_path: Path, parts: list[Part], **given: object) -> tuple[bool, dict]:
    results = Results(tmp_path / "speed.json", {"step": "speed", "tiny": False})
    whole = run_parts(iter(parts), task(tmp_path, **given), results, lambda: MACHINE)  # type: ignore[arg-type]
    return whole, json.loads((tmp_path / "speed.json").read_text())


def test_every_step_is_a_module_whose_results_come_back_in_time() -> None:
    plan = Plan.read()
    assert [step.name for step in plan.steps] == ["parity", "speed", "training", "states", "worker"]
    for step in plan.steps:
        assert (ROOT / "tools" / "gpu" / "steps" / f"{step.name}.py").exists()
        assert f"{step.name}.json" in step.writes
        assert step.seconds <= plan.limits.command_s
    assert sum(step.seconds for step in plan.steps) <= plan.limits.total_s


def test_sequences_travel_as_they_are(tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    lists = [
        [Tokens(draw.integers(0, 30_522, n), (np.arange(n) >= 3).astype(np.int64)) for n in lengths]
        for lengths in ((5, 9, 512), (4,))
    ]
    luggage.write_sequences(tmp_path / "lists.npz", lists)
    found = luggage.read_sequences(tmp_path / "lists.npz")
    assert [len(one) for one in found] == [3, 1]
    for one, other in zip(chain(*lists), chain(*found), strict=True):
        np.testing.assert_array_equal(one.ids, other.ids)
        np.testing.assert_array_equal(one.segments, other.segments)


def test_lists_share_their_texts(tmp_path: Path) -> None:
    texts = [f"paragraph {number} " + "word " * 200 for number in range(5)]
    luggage.write_lists(tmp_path / "lists.zip", [(f"q{n}", texts, [int(n == at) for at in range(5)]) for n in range(5)])
    found = list(luggage.read_lists(tmp_path / "lists.zip"))
    assert found[2] == {"query": "q2", "documents": texts, "relevance": [0, 0, 1, 0, 0]}
    assert (tmp_path / "lists.zip").stat().st_size < 2000


def test_weights_in_halves_come_out_bit_by_bit(tmp_path: Path) -> None:
    halves = {"weight": np.random.default_rng(1).normal(size=(40, 40)).astype(np.float16)}
    save_file(halves, tmp_path / "start.safetensors")
    luggage.write_halves(tmp_path / "start.safetensors", tmp_path / "start.zip")
    luggage.read_halves(tmp_path / "start.zip", tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "start.safetensors").read_bytes()


def test_weights_come_back_as_the_layers_that_changed(tmp_path: Path) -> None:
    start = {name: np.full((100, 100), number, np.float32) for number, name in enumerate("abcd")}
    trained = {**start, "b": start["b"] + 0.5, "c": start["c"] + 0.5, "d": start["d"] + 0.5}
    save_file(start, tmp_path / "start.safetensors")
    save_file(trained, tmp_path / "trained.safetensors")
    where = (tmp_path / "start.safetensors", tmp_path / "trained.safetensors", tmp_path)
    files = luggage.write_changed(*where, stem="mono", most_bytes=65_536 + 45_000)
    assert [file.name for file in files] == ["mono-0.safetensors", "mono-1.safetensors"]
    assert "a" not in {name for file in files for name in load_file(file)}
    luggage.join_changed(tmp_path / "start.safetensors", files, tmp_path / "joined.safetensors")
    for name, weights in load_file(tmp_path / "joined.safetensors").items():
        np.testing.assert_array_equal(weights, trained[name])
    with pytest.raises(ValueError, match="freeze that layer"):
        luggage.write_changed(*where, stem="mono", most_bytes=70_000)


def test_what_came_back_of_a_training_is_a_model(tmp_path: Path) -> None:
    start = ROOT / "tests" / "data" / "tiny-bert-bi-encoder"
    weights = load_file(start / "model.safetensors")
    changed = next(name for name in weights if name.endswith("output.dense.weight"))
    save_file({changed: (weights[changed] * 2).astype(np.float16)}, tmp_path / "mono-0.safetensors")
    card = json.loads((start / "osrerank.json").read_text())
    parts = {"mono": {**MACHINE, "card": card}}
    content = {"step": "training", "tiny": False, "complete": True, "failed": {}, "parts": parts}
    (tmp_path / "training.json").write_text(json.dumps(content))
    report.write_model(tmp_path, start, tmp_path / "made")
    before, after = (
        load_scorer(str(folder), backend="torch").score("heat", ["flow of heat"], [(0,)]).values
        for folder in (start, tmp_path / "made")
    )
    assert before[0] != after[0]
    assert np.isfinite(after).all()


def test_parts_keep_their_limit_and_their_order(tmp_path: Path) -> None:
    assert divide({"a": 6, "b": 4, "c": 1, "d": 10}, 10) == [["a", "b"], ["c"], ["d"]]
    with pytest.raises(ValueError, match="large has 11 bytes, and at most 10"):
        divide({"large": 11}, 10)
    for name, size in (("code/run.py", 3000), ("texts/a.npz", 3000), ("models/start/model.zip", 5000)):
        (tmp_path / "whole" / name).parent.mkdir(parents=True)
        (tmp_path / "whole" / name).write_bytes(b"x" * size)
    parts = write_parts(tmp_path / "whole", tmp_path / "made", LIMITS)
    assert [sorted(part) for part in parts] == [
        ["code/run.py", "start.py", "texts/a.npz"],
        ["models/start/model.zip", "start.py"],
    ]
    assert all(sum(part.values()) <= LIMITS.part_bytes for part in parts)
    assert (tmp_path / "made" / "2" / "models" / "start" / "model.zip").stat().st_size == 5000


def test_what_is_measured_is_not_measured_again(tmp_path: Path) -> None:
    tried: list[str] = []

    def part(name: str, error: Exception | None = None, seconds: float = 1.0) -> Part:
        def measure() -> dict:
            tried.append(name)
            if error:
                raise error
            return {"figure": len(tried)}

        return Part(name, seconds, measure)

    parts = [part("first"), part("broken", RuntimeError("no kernel")), part("long", seconds=500)]
    whole, content = measured(tmp_path, parts)
    assert not whole
    assert list(content["parts"]) == ["first"]
    assert content["failed"] == {"broken": "RuntimeError: no kernel"}
    assert not content["complete"]
    whole, content = measured(tmp_path, [parts[0], part("broken"), parts[2]], left_s=1000.0)
    assert whole
    assert content["complete"]
    assert tried == ["first", "broken", "broken", "long"]
    assert content["failed"] == {}
    assert content["parts"]["first"]["figure"] == 1
    assert content["parts"]["long"]["device"] == "made"


def test_a_step_that_cannot_be_run_says_why(tmp_path: Path) -> None:
    step = Plan.read().step("states")
    folders = Folders(tmp_path / "luggage", tmp_path, tmp_path)
    assert reason_to_skip(step, folders, left_s=100, tiny=False) == f"needs {step.needs[0]}, which has not travelled"
    (tmp_path / "luggage" / step.needs[0]).parent.mkdir(parents=True)
    (tmp_path / "luggage" / step.needs[0]).touch()
    assert reason_to_skip(step, folders, left_s=3, tiny=False) == "3 s are left"
    assert reason_to_skip(step, folders, left_s=100, tiny=False) == ""
    done = {"tiny": False, "complete": True, "parts": {}, "failed": {}}
    (tmp_path / "states.json").write_text(json.dumps(done))
    assert reason_to_skip(step, folders, left_s=100, tiny=False) == "done"
    assert reason_to_skip(step, folders, left_s=100, tiny=True) == ""  # a rehearsal counts for no other run
    (tmp_path / "states.json").write_text(json.dumps({**done, "failed": {"a part": "no kernel"}}))
    assert reason_to_skip(step, folders, left_s=100, tiny=False) == ""
    assert run(Plan.read(), folders, seconds=16, only=["parity"])[0].startswith("parity: needs texts/standard.npz")


def test_a_step_that_does_not_end_is_ended_by_force(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "slow"
    slow.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(60)\n")
    slow.chmod(0o755)
    monkeypatch.setattr("tools.gpu.run.sys.executable", str(slow))
    monkeypatch.setattr("tools.gpu.run.RESERVE_S", 0.2)
    started = time.monotonic()
    told = run_step(Plan.read().step("worker"), Folders(tmp_path, tmp_path, tmp_path), seconds=0.5, tiny=True)
    assert told.startswith("ended by force after")
    assert time.monotonic() - started < 30


def test_the_first_program_needs_the_standard_library_alone(tmp_path: Path) -> None:
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "start.py").write_bytes((ROOT / "tools" / "gpu" / "start.py").read_bytes())
    (tmp_path / "2" / "weights").write_text("w")
    command = [sys.executable, "-I", "-S", "2/start.py", "--work", "work", "--results", "results"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "bring the part that has it" in found.stdout
    assert (tmp_path / "work" / "luggage" / "weights").read_text() == "w"


SPEED = {
    "base, 512": {
        **MACHINE, "seconds": 1.0,
        "rows": {
            "osrerank, 8 calls at once": {"pairs/s": 9.0, "tokens/s": 10},
            "sentence-transformers, batches of 32": {"pairs/s": 3.0, "tokens/s": 4},
        },
    },
    "two processes, base": {**MACHINE, "seconds": 1.0, "2 processes": 5},
}  # fmt: skip


def test_tables_are_of_the_json_that_came_back() -> None:
    results = {"speed": {"tiny": False, "complete": True, "parts": SPEED, "failed": {"large, 512": "no memory"}}}
    report.check(results)
    found = report.section("speed", results)
    assert "device made, driver 1, date 2026-01-01." in found
    assert "| base, 512 | 9 | 3 | 3 |" in found
    assert "- two processes, base: 2 processes 5" in found
    assert "- large, 512: no memory" in found
    assert report.section("states", results) == report.NOTHING


def test_no_figure_of_a_rehearsal_reaches_a_page() -> None:
    with pytest.raises(ValueError, match="a rehearsal's"):
        report.check({"speed": {"tiny": True, "parts": SPEED}})
    without = {name: {**part, "driver": "none"} for name, part in SPEED.items()}
    with pytest.raises(ValueError, match="which is no GPU"):
        report.check({"speed": {"tiny": False, "parts": without}})


def test_every_page_has_its_markers() -> None:
    for page, names in report.PAGES.items():
        text = (ROOT / page).read_text("utf-8")
        for name in names:
            assert "| made |" in report.with_section(text, name, "| made |")
    with pytest.raises(ValueError, match="the page has no lines"):
        report.with_section("nothing", "speed", "")
