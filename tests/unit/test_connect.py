"""`osrerank.connect`: its options, and warming up."""

import os
import subprocess
import sys

import opensearchpy
import pytest

from osrerank import connect
from osrerank.errors import ConfigError
from tests.servers import ROOT


@pytest.mark.parametrize(
    ("option", "nearest"), [("retry_on_timeouts", "retry_on_timeout"), ("moddel", "model"), ("http_auht", "http_auth")]
)
def test_unknown_options_of_connect_name_the_nearest(option, nearest):
    with pytest.raises(ConfigError, match=f"connect has no argument {option!r}; did you mean {nearest!r}\\?"):
        connect("http://localhost:9", **{option: 1})


def test_connect_passes_opensearch_pys_options_on(tmp_path):
    options = {"http_auth": ("a", "b"), "verify_certs": False, "ssl_show_warn": False, "randomize_hosts": False}
    connect("https://localhost:9", timeout=3, max_retries=1, http_compress=True, headers={"x": "y"}, **options).close()
    connect(f"embedded:{tmp_path}", timeout=3).close()
    with pytest.raises(ConfigError, match="no argument 'colour'"):
        connect(f"embedded:{tmp_path}", colour="red")
    client = connect("http://localhost:9", connection_class=opensearchpy.RequestsHttpConnection, colour="red")
    client.close()


WARMED = """
import sys, tempfile
from osrerank import connect
options = {options}
with connect("embedded:" + tempfile.mkdtemp(), rerank=options) as client:
    client.bulk(body=[{{"index": {{"_index": "n"}}}}, {{"text": "Low salt, low blood pressure."}}], refresh=True)
    client.search("low", index="n")
    client.warm_up()
    before = set(sys.modules)
    response = client.search("low blood pressure", index="n", rerank=True)
    print(response["rerank"]["applied"], sorted(set(sys.modules) - before))
"""


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"pipeline": "mono-duo"},
        pytest.param({"passages": "maxp"}, marks=pytest.mark.slow),
        pytest.param({"sentences": True}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_after_warm_up_the_first_search_loads_no_model(options):
    program = WARMED.format(options=options)
    environment = {**os.environ, "OSRERANK_DUO_MODEL": str(ROOT / "tests" / "data" / "tiny-bert-duo")}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment)
    assert done.stdout == "True []\n", done.stderr
