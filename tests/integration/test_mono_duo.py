"""monoBERT, then duoBERT, through the search call of both engines, with the tiny models."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from osrerank.cli import cli
from osrerank.evaluation.side_file import read_options, read_records
from osrerank.evaluation.tradeoff import OperatingPoint, QueryScores, derive
from osrerank.scoring.registry import load_scorer
from tests.articles import filled

pytestmark = pytest.mark.integration

DATA = Path(__file__).parents[1] / "data"
MONO, DUO = str(DATA / "tiny-bert-one-label"), str(DATA / "tiny-bert-duo")
INDEX = "mono-duo"
QUERY = "low blood pressure"
WORDS = ("low", "blood", "pressure", "heat", "flow", "wing", "boundary", "layer", "search", "engine", "query", "rank")


def text(place):
    """Ten words, each text with another mixture of the query's among them."""
    return " ".join(WORDS[(place * step + step * step) % len(WORDS)] for step in range(1, 11)) + " low"


@pytest.fixture(scope="module", autouse=True)
def uncached():
    """Keep no scores in the process: the tests count inferences."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OSRERANK_CACHE_LOCAL_MB", "0")
        yield


@pytest.fixture(scope="module")
def client(engine_url, uncached):
    documents = {f"d{place}": {"text": text(place)} for place in range(30)}
    settings = {"settings": {"number_of_shards": 1, "number_of_replicas": 0}}
    with filled(engine_url, INDEX, documents, settings, model=MONO, duo_model=DUO) as made:
        yield made


def ids(response):
    return [hit["_id"] for hit in response["hits"]["hits"]]


@pytest.mark.parametrize(
    ("options", "pairs"),
    [
        ({"duo_depth": 10}, 90),
        ({"duo_depth": 10, "pairs": "binary"}, 90),
        ({"duo_depth": 10, "pairs": {"aggregation": "sample", "sample_size": 3, "seed": 5}}, 30),
        ({"duo_depth": 50}, 25 * 24),  # no deeper than mono
        ({"duo_depth": 1}, 0),
        ({"duo_depth": 0}, 0),
    ],
)
def test_inferences_are_what_the_formula_says(client, options, pairs):
    response = client.search(QUERY, index=INDEX, size=30, rerank={"pipeline": "mono-duo", "depth": 25, **options})
    assert response["rerank"]["applied"] is True
    mono, duo = response["rerank"]["stages"]
    assert (mono["name"], mono["inferences"], mono["model"]) == ("mono", 25, "tiny-bert-one-label")
    assert (duo["name"], duo["inferences"], duo["model"]) == ("duo", pairs, "tiny-bert-duo")
    scores = [hit["_score"] for hit in response["hits"]["hits"]]
    assert scores == sorted(scores, reverse=True)
    assert len(set(ids(response))) == 30


def test_order_is_that_of_the_pairs_and_the_tail_is_monos(client):
    mono = client.search(QUERY, index=INDEX, size=30, rerank={"depth": 20})
    duo = client.search(
        QUERY, index=INDEX, size=30, rerank={"pipeline": "mono-duo", "depth": 20, "duo_depth": 6, "explain": True}
    )
    assert ids(duo)[6:] == ids(mono)[6:]
    assert sorted(ids(duo)[:6]) == sorted(ids(mono)[:6])
    top = ids(mono)[:6]
    kept = duo["rerank"]["stages"][1]["pairs"]
    assert kept["doc_ids"] == top
    texts = [text(int(name[1:])) for name in top]
    tuples = [(i, j) for i in range(6) for j in range(6) if i != j]
    scorer = load_scorer(DUO, backend="onnx")
    expected = dict(zip(tuples, scorer.probabilities(scorer.score(QUERY, texts, tuples).values), strict=True))
    for (i, j), probability in expected.items():
        assert kept["probabilities"][i][j] == pytest.approx(probability, abs=1e-5)
    sums = {name: sum(expected[i, j] for j in range(6) if j != i) for i, name in enumerate(top)}
    for hit in duo["hits"]["hits"][:6]:
        marks = hit["_rerank"]["duo"]
        assert marks["score"] == marks["sum"] == pytest.approx(sums[hit["_id"]], abs=1e-4)
        assert marks["rivals"] == 5
        assert hit["_score"] == pytest.approx(2 + marks["sum"] / 5)
        assert any(line.startswith("duo: rank ") for line in hit["_rerank"]["explanation"])
    assert "duo" not in duo["hits"]["hits"][6]["_rerank"]
    assert "pairs" not in mono["rerank"]["stages"][0]


def test_pages_join_and_those_below_the_pairs_compute_none(client):
    options = {"pipeline": "mono-duo", "depth": 20, "duo_depth": 6}
    whole = client.search(QUERY, index=INDEX, size=30, rerank=options)["hits"]["hits"]
    for offset in (0, 3, 6, 9, 27):
        page = client.search(QUERY, index=INDEX, size=3, from_=offset, rerank=options)
        assert page["hits"]["hits"] == whole[offset : offset + 3]
        assert page["rerank"]["applied"] is True
        duo = page["rerank"]["stages"][1]
        assert duo["inferences"] == (30 if offset < 6 else 0)
        assert bool(duo["reason"]) is (offset >= 6)


@pytest.mark.parametrize("blend", ["linear", "rrf"])
def test_pairs_are_of_the_best_behind_the_blend(client, blend):
    options = {"depth": 20, "blend": blend, "blend_weight": 2.0}
    blended = client.search(QUERY, index=INDEX, size=30, rerank=options)
    duo = client.search(QUERY, index=INDEX, size=30, rerank={**options, "pipeline": "mono-duo", "duo_depth": 5})
    assert [stage["name"] for stage in duo["rerank"]["stages"]] == ["mono", "blend", "duo"]
    assert sorted(ids(duo)[:5]) == sorted(ids(blended)[:5])
    assert ids(duo)[5:] == ids(blended)[5:]
    assert [int(hit["_score"]) for hit in duo["hits"]["hits"]] == [2] * 5 + [1] * 15 + [0] * 10


@pytest.mark.parametrize("first", [{"passages": "maxp"}, {"sentences": True}])
def test_pairs_follow_passages_and_sentences(client, first):
    response = client.search(QUERY, index=INDEX, rerank={"pipeline": "mono-duo", "duo_depth": 4, **first})
    assert response["rerank"]["applied"] is True
    assert response["rerank"]["stages"][1]["inferences"] == 12


def test_run_and_tradeoff(engine_url, client, tmp_path):
    """The whole way: run, pairs in its side file, every smaller setting derived as a search of it orders."""
    queries, qrels, output = tmp_path / "q.tsv", tmp_path / "qrels", tmp_path / "duo.run"
    queries.write_text("q1\tlow blood pressure\nq2\tsearch engine low\n")
    qrels.write_text("q1 0 d3 1\nq1 0 d7 2\nq2 0 d1 1\n")
    models = ["--url", engine_url, "--model", MONO, "--duo-model", DUO]
    settings = ["run", "--queries", str(queries), "--index", INDEX, "--hits", "30", "-o", str(output)]
    outcome = CliRunner().invoke(
        cli, [*models, *settings, "--pipeline", "mono-duo", "--depth", "20", "--duo-depth", "8"]
    )
    assert outcome.exit_code == 0, outcome.output
    side_file = tmp_path / "duo.run.jsonl"
    assert read_options(side_file)["duo"] == load_scorer(DUO, backend="onnx").identity
    for record in read_records(side_file):
        assert [stage["inferences"] for stage in record.fields["stages"]] == [20, 56]
        query = dict(line.split("\t") for line in queries.read_text().splitlines())[record.query_id]
        for how in ("sum", "binary", "min", "max", "sample"):
            pairs = {"aggregation": how, "sample_size": 2, "seed": 1}
            options = {"pipeline": "mono-duo", "depth": 20, "duo_depth": 5, "pairs": pairs}
            searched = client.search(query, index=INDEX, size=30, rerank=options)
            ranking, inferences = derive(QueryScores.of(record), OperatingPoint(20, 5, how, sample_size=2, seed=1))
            assert list(ranking) == ids(searched)
            assert inferences == sum(stage["inferences"] for stage in searched["rerank"]["stages"])
    plot = tmp_path / "plot.svg"
    outcome = CliRunner().invoke(
        cli,
        ["tradeoff", str(qrels), str(side_file), "--json", "--plot", str(plot), "--pairs", "sum", "--pairs", "sample"],
    )
    assert outcome.exit_code == 0, outcome.output
    points = json.loads(outcome.output)["points"]
    assert {point["curve"] for point in points} == {"monoBERT", "duoBERT Sum, k0 = 20", "duoBERT Sample, k0 = 20"}
    assert "Inferences per query" in plot.read_text()
