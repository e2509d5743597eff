"""monoBERT, then duoBERT, through the search call of three engines, with the tiny models."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from osrerank.cli import cli
from osrerank.evaluation.side_file import read_options, read_records
from osrerank.evaluation.tradeoff import QueryScores, RerankSetting, derive_ranking
from osrerank.scoring.registry import load_scorer
from tests.articles import filled
from tests.rankings import ids

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
    documents = {f"d{index}": {"text": text(index)} for index in range(30)}
    settings = {"settings": {"number_of_shards": 1, "number_of_replicas": 0}}
    with filled(engine_url, INDEX, documents, settings, model=MONO, duo_model=DUO) as made:
        yield made


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
def test_the_number_of_inferences_is_that_of_the_formula(client, options, pairs):
    response = client.search(QUERY, index=INDEX, size=30, rerank={"pipeline": "mono-duo", "depth": 25, **options})
    assert response["rerank"]["applied"] is True
    mono, duo = response["rerank"]["stages"]
    assert (mono["name"], mono["inferences"], mono["model"]) == ("mono", 25, "tiny-bert-one-label")
    assert (duo["name"], duo["inferences"], duo["model"]) == ("duo", pairs, "tiny-bert-duo")
    scores = [hit["_score"] for hit in response["hits"]["hits"]]
    assert scores == sorted(scores, reverse=True)
    assert len(set(ids(response))) == 30


def test_the_order_derived_from_a_run_is_the_order_of_a_search(engine_url, client, tmp_path):
    queries, output = tmp_path / "q.tsv", tmp_path / "duo.run"
    queries.write_text("q1\tlow blood pressure\nq2\tsearch engine low\n")
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
            ranking, inferences = derive_ranking(
                QueryScores.from_record(record), RerankSetting(20, 5, how, sample_size=2, seed=1)
            )
            assert list(ranking) == ids(searched)
            assert inferences == sum(stage["inferences"] for stage in searched["rerank"]["stages"])
