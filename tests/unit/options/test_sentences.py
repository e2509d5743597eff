"""The option sentences: what is refused, by name."""

import pytest

from osrerank import Rerank
from osrerank.errors import ConfigError


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({"a": 1.5}, "sentences.a"),
        ({"weights": []}, "sentences.weights"),
        ({"weights": [1, 2]}, "sentences.weights"),
        ({"scores": "rank"}, "sentences.scores"),
        ({"max_words": 0}, "sentences.max_words"),
        ({"drop_tail": "no"}, "sentences.drop_tail"),
        ({"language": ""}, "sentences.language"),
        ({"language": "ja", "splitter": "punkt"}, "sentences.language"),
        ({"splitter": "nltk"}, "sentences.splitter"),
        ({"chunks": "pieces"}, "sentences.chunks"),
        ({"chunks": "tokens", "drop_tail": True}, "sentences.drop_tail"),
        ({"limit": 0}, "sentences.limit"),
        ({"alpha": 0.5}, "sentences.alpha"),
        (0.5, "sentences"),
    ],
)
def test_malformed_option_is_named(value, named):
    with pytest.raises(ConfigError) as caught:
        Rerank(sentences=value)
    assert caught.value.setting == f"rerank.{named}"
