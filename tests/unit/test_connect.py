"""What `connect` passes on to opensearch-py, and what it refuses."""

import opensearchpy
import pytest

from osrerank import connect
from osrerank.errors import ConfigError


@pytest.mark.parametrize(
    ("option", "nearest"), [("retry_on_timeouts", "retry_on_timeout"), ("moddel", "model"), ("http_auht", "http_auth")]
)
def test_unknown_options_of_connect_name_the_nearest(option, nearest):
    with pytest.raises(ConfigError, match=f"connect has no argument {option}; did you mean {nearest}\\?"):
        connect("http://localhost:9", **{option: 1})


def test_what_opensearch_py_knows_is_passed_on(tmp_path):
    options = {"http_auth": ("a", "b"), "verify_certs": False, "ssl_show_warn": False, "randomize_hosts": False}
    connect("https://localhost:9", timeout=3, max_retries=1, http_compress=True, headers={"x": "y"}, **options).close()
    connect(f"embedded:{tmp_path}", timeout=3).close()
    with pytest.raises(ConfigError, match="no argument colour"):
        connect(f"embedded:{tmp_path}", colour="red")
    own = connect("http://localhost:9", connection_class=opensearchpy.RequestsHttpConnection, colour="red")
    own.close()
