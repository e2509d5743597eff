"""Writing to standard output that leads to a file."""

from osrerank.formats import files


def test_standard_output_that_leads_to_a_file_is_written_and_not_replaced(tmp_path, monkeypatch, capsysbinary):
    (tmp_path / "file").touch()
    link = tmp_path / "stdout"
    link.symlink_to(tmp_path / "file")
    monkeypatch.setattr(files, "STDOUT", link)
    files.write_atomically(link, ["a\n", "b\n"])
    assert capsysbinary.readouterr().out == b"a\nb\n"
    assert link.is_symlink()
