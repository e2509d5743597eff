"""TensorFlow's checkpoints: one that TensorFlow wrote, and damaged in every way."""

import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from osrerank.errors import ModelLoadError
from osrerank.scoring.checkpoints import bundle
from osrerank.scoring.checkpoints.bundle import read_bundle
from osrerank.scoring.checkpoints.tensorflow import find_checkpoint, read_tensorflow

pytest.importorskip("google_crc32c")

ROOT = Path(__file__).parents[4]
GOOGLE = ROOT / "tests" / "data" / "tiny-bert-tensorflow"
INDEX, DATA = "model.ckpt-7.index", "model.ckpt-7.data-00000-of-00001"


def test_all_variables_of_a_tensorflow_checkpoint_are_read() -> None:
    variables = read_bundle(GOOGLE / "model.ckpt-7")
    assert variables["global_step"] == 7
    assert variables["bert/embeddings/word_embeddings"].shape == (278, 16)
    assert variables["bert/encoder/layer_1/intermediate/dense/kernel"].shape == (16, 32)
    weights, config = read_tensorflow(GOOGLE)
    assert weights["bert.encoder.layer.1.intermediate.dense.weight"].shape == (32, 16)
    assert weights["classifier.weight"].shape == (2, 16)
    assert not [name for name in weights if "adam" in name or name == "global_step"]
    assert config["model_type"] == "bert"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOOGLE, tmp_path / "copy"))


@given(name=st.sampled_from([INDEX, DATA]), offset_share=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_of_a_tensorflow_checkpoint_is_noticed_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, name: str, offset_share: float, bit: int
) -> None:
    folder = Path(shutil.copytree(GOOGLE, tmp_path_factory.mktemp("flipped") / "copy"))
    content = bytearray((folder / name).read_bytes())
    content[int(offset_share * len(content))] ^= 1 << bit
    (folder / name).write_bytes(content)
    expected = read_bundle(GOOGLE / "model.ckpt-7")
    try:
        variables = read_bundle(folder / "model.ckpt-7")
    except ModelLoadError:
        return
    assert variables.keys() == expected.keys()
    assert all(np.array_equal(variables[key], expected[key]) for key in expected)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
@pytest.mark.parametrize("name", [INDEX, DATA])
def test_a_truncated_tensorflow_checkpoint_is_refused(copy: Path, name: str, share: float) -> None:
    content = (copy / name).read_bytes()
    (copy / name).write_bytes(content[: int(share * len(content))])
    with pytest.raises(ModelLoadError, match=f"{name} (is truncated|cannot be read)"):
        read_bundle(copy / "model.ckpt-7")


def test_a_missing_data_file_of_a_tensorflow_checkpoint_is_named(copy: Path) -> None:
    (copy / DATA).unlink()
    with pytest.raises(ModelLoadError, match=f"{DATA}, which the index lists, cannot be read"):
        read_bundle(copy / "model.ckpt-7")


def test_an_index_that_contradicts_itself_is_named(copy: Path) -> None:
    content = (copy / INDEX).read_bytes()
    header = content.index(b"\x08\x01")  # the number of data files
    _, end = bundle._read_handle(content, len(content) - bundle.FOOTER_BYTES)
    (offset, size), _ = bundle._read_handle(content, end)
    ((_, value),) = bundle._parse_block(content[offset : offset + size])
    (start, size), _ = bundle._read_handle(value, 0)
    block = content[start:header] + b"\x08\x00" + content[header + 2 : start + size]
    checksum = struct.pack("<I", bundle._masked_crc(block + b"\x00"))
    (copy / INDEX).write_bytes(content[:start] + block + b"\x00" + checksum + content[start + size + 5 :])
    with pytest.raises(ModelLoadError, match=f"{INDEX} is damaged: .* in 64 bytes of data file 0, of 0"):
        read_bundle(copy / "model.ckpt-7")


def test_the_named_checkpoint_of_several_tensorflow_checkpoints_is_read(copy: Path) -> None:
    for file in list(copy.glob("model.ckpt-7.*")):
        shutil.copyfile(file, copy / file.name.replace("ckpt-7", "ckpt-9"))
    with pytest.raises(ModelLoadError, match=r"several checkpoints \(model.ckpt-7, model.ckpt-9\)"):
        find_checkpoint(copy)
    (copy / "checkpoint").write_text('model_checkpoint_path: "/some/where/model.ckpt-9"\n')
    assert find_checkpoint(copy) == copy / "model.ckpt-9"
