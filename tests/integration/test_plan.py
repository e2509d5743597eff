"""`osrerank plan` with real workers."""

import json

import pytest
from click.testing import CliRunner

from osrerank.cli import cli
from osrerank.errors import ConfigError
from tests.workers import TINY, worker_group

pytestmark = [pytest.mark.integration, pytest.mark.long]


def test_plan_measures_the_one_worker_that_is_there(redis_url, tmp_path):
    command = ["--json", "--model", TINY, "--backend", "workers", "--redis-url", redis_url, "plan"]
    asked = ["--searches-per-s", "1", "--depth", "5", "--document-words", "10", "--budget-s", "1", "--p95-ms", "60000"]
    with worker_group(redis_url, tmp_path, options=("--threads", "1", "--tasks", "3")) as group:
        found = CliRunner().invoke(cli, [*command, *asked])
        assert found.exit_code == 0, found.output
        made = json.loads(found.stdout)
        assert made["rates"]["where"]["backend"] == "workers"
        assert made["rates"]["whole"]["tasks"] == 3
        assert made["workers"]["found"]["workers"] >= 1
        group.start(1)
        refused = CliRunner().invoke(cli, [*command, *asked])
    assert isinstance(refused.exception, ConfigError)
    assert str(refused.exception) == "--backend workers: 2 workers are there, and one is measured: stop the others"
