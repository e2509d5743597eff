"""Writing files whole, and to standard output or a device."""

from pathlib import Path

import pytest

from osrerank.formats import files


def test_standard_output_that_leads_to_a_file_is_written_and_not_replaced(tmp_path, monkeypatch, capsysbinary):
    (tmp_path / "file").touch()
    link = tmp_path / "stdout"
    link.symlink_to(tmp_path / "file")
    monkeypatch.setattr(files, "STDOUT", link)
    files.write_atomically(link, ["a\n", "b\n"])
    assert capsysbinary.readouterr().out == b"a\nb\n"
    assert link.is_symlink()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
def test_the_error_about_a_full_disk_names_the_file():
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        files.write_atomically(Path("/dev/full"), ["a\n"])
