"""Which searches are in a share: by a key, alike everywhere."""

import pytest

from osrerank.options.share import is_chosen

KEYS = [f"user-{number}" for number in range(10_000)]


def test_a_share_has_about_so_many_keys_and_a_greater_one_all_of_a_smaller() -> None:
    tenth, third = ({key for key in KEYS if is_chosen(share, key)} for share in (0.1, 0.3))
    assert 900 < len(tenth) < 1100
    assert tenth < third


def test_none_and_all_are_shares() -> None:
    assert not any(is_chosen(0, key) for key in KEYS)
    assert all(is_chosen(1, key) for key in KEYS)
    assert is_chosen(1.0, "a lone surrogate \ud800")


@pytest.mark.parametrize(("key", "share"), [("user-1", 0.34249), ("blood pressure", 0.95199), ("", 0.92867)])
def test_a_key_has_the_same_place_in_every_process_and_version(key: str, share: float) -> None:
    assert not is_chosen(share - 0.0001, key)
    assert is_chosen(share + 0.0001, key)
