"""The sections on the papers' tables: each one's commands run, word for word, on small data with a small model."""

import json
import re
from pathlib import Path

import pytest

from osrerank_loaders.download import read_catalogue
from tests.docs.reproduce import collections
from tests.docs.reproduce.conftest import SECTIONS, RunSection, blocks

pytestmark = pytest.mark.long


@pytest.mark.parametrize("name", sorted(SECTIONS.keys() - {"small"}))
def test_the_publishers_files_that_a_section_names_are_listed(name: str) -> None:
    matches = re.findall(r"^ *osrerank download (\S+)(?: --only (\S+))?$", "\n".join(blocks(name)), re.MULTILINE)
    assert matches
    for collection, file in matches:
        listed = {file.name for file in read_catalogue()[collection].files}
        assert not file or file in listed
    unpacked = re.findall(r"([\w.-]+)/([\w.$-]+\.(?:tar\.gz|tar\.xz|zip))", "\n".join(blocks(name)))
    for collection, file in unpacked:
        assert file in {file.name for file in read_catalogue()[collection].files}


@pytest.mark.parametrize("name", SECTIONS)
def test_no_published_number_stands_beside_the_shipped_model(name: str) -> None:
    scoring = re.findall(r"^ *osrerank (?:--\S+ \S+ )*(?:run|rerank) .*$", "\n".join(blocks(name)), re.MULTILINE)
    assert scoring
    for line in scoring:
        assert "--no-rerank" in line or line.lstrip().startswith("osrerank --model "), line


@pytest.mark.slow
def test_the_commands_for_small_collections_run(run_section: RunSection, redis_url: str, tmp_path: Path) -> None:
    pytest.importorskip("optimum")
    settings = (
        f"export OSRERANK_URL=embedded:./small\nBROKER={redis_url}\nQUESTIONS=5\nSTEPS=1\nK0=4\nK1=3\n"
        'FIGURE_K0="0,2,4"\nFIGURE_K1="0,2,3"\nSMALL_K0=3\nSAMPLES="1,2"'
    )
    output = run_section("small", {}, settings)
    assert output.endswith("the same\n")
    assert all(f"duoBERT {name}, k0" in output for name in ("Sum", "Binary", "Min", "Max", "Sample"))
    assert all((tmp_path / "work" / f"figure-{number}.svg").exists() for number in (2, 3, 4))
    searched = (tmp_path / "work" / "workers.run.jsonl").read_text("utf-8")
    assert searched.count('"applied":true,"reason":null') == 5 * 3  # each search, and its two stages


@pytest.mark.slow
def test_the_commands_for_monobert_run(run_section: RunSection) -> None:
    settings = 'STEPS=4\nWARMUP=1\nPAIRS_SEEN="64 96"\nDEV_QUERIES=5'
    output = run_section("monobert", collections.msmarco_passage(), settings)
    assert output.count("MRR@10 (MS MARCO)") == 4


@pytest.mark.slow
def test_the_commands_for_trec_car_run(run_section: RunSection) -> None:
    pytest.importorskip("torch")
    from tests.docs.reproduce.bert import repository

    classifier = repository("classifier")
    files = {f"authors-model/{name}": content for name, content in classifier.items()}
    files["authors-model/bert_config.json"] = classifier["config.json"]
    settings = (
        "export OSRERANK_URL=embedded:index\nSTEPS=3\nWARMUP=1\nDEV_QUERIES=2\nAUTHORS_MODEL=authors-model\n"
        "TABLE2_STEPS=2\nTABLE2_WARMUP=1\nTABLE2_BATCH=4\nK1=3"
    )
    output = run_section("trec-car", collections.trec_car(), settings, files)
    assert "1 skipped" not in output
    assert output.count("AP@1000") == 5
    assert "duoBERT Binary, k0 = " in output


@pytest.mark.slow
def test_the_commands_for_the_multi_stage_paper_run(run_section: RunSection, tmp_path: Path) -> None:
    settings = (
        "export OSRERANK_URL=embedded:index\nSTEPS=2\nWARMUP=1\nBATCH=8\nTOKENS=32\nK1=4\n"
        'FIGURE_K0="0,10,20,40"\nFIGURE_K1="0,2,4"\nSMALL_K0=5\nSAMPLES="1,2"'
    )
    output = run_section("multi-stage", collections.msmarco_passage(), settings)
    for name in ("Sum", "Binary", "Min", "Max", "Sample"):
        assert f"duoBERT {name}, k0" in output
    assert "duoBERT Sample of 2, k0" in output
    assert output.count("  duo: ") == 10
    work = tmp_path / "work"
    assert all((work / f"figure-{number}.svg").exists() for number in (2, 3, 4))
    records = [json.loads(line) for line in (work / "duo.run.jsonl").read_text("utf-8").splitlines()[1:]]
    counts = [sum(stage["inferences"] for stage in record["stages"]) for record in records]
    assert counts == [len(record["candidates"]) + 4 * 3 for record in records]


@pytest.mark.slow
def test_the_commands_for_the_icip_paper_run(run_section: RunSection) -> None:
    settings = "STEPS=3\nWARMUP=1\nDEV_QUERIES=2\nLAYERS=1"
    output = run_section("icip", collections.msmarco_document() | collections.msmarco_passage(), settings)
    assert output.count("model6-2020") >= 1


@pytest.mark.slow
def test_the_commands_for_birch_run(run_section: RunSection) -> None:
    pytest.importorskip("sentencex")
    settings = (
        "export OSRERANK_URL=embedded:index\nDISKS45=disks45\nNYT=nyt_corpus\nPOST=WashingtonPost.v2/data\n"
        "MICROBLOG=microblog\nMODELS=msmarco_mb\nEPOCHS=1"
    )
    output = run_section("birch", collections.newswire(), settings, collections.licensed())
    assert output.count("msmarco_mb.3S") >= 3
