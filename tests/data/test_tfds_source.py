"""Data sets of TFDS: array_record as it prepares them, tfrecord written by hand."""

import json
import pickle
import shutil
import struct

import pytest
import tensorflow_datasets as tfds

from attnlab.data import texts
from attnlab.data.tfds_source import Shard, TFRecords, open_tfds
from attnlab.runs.errors import Invalid
from tests.data.tfds_sets import ENGLISH, GERMAN, Pairs, prepared


class Plain(Pairs):
    name = "plain"
    features = tfds.features.FeaturesDict(
        {"text": tfds.features.Text(), "label": tfds.features.Text()}
    )
    supervised_keys = None

    def _generate_examples(self):
        yield from ((i, {"text": de, "label": "x"}) for i, de in enumerate(GERMAN))


class Labelled(Pairs):
    name = "labelled"
    features = tfds.features.FeaturesDict(
        {"text": tfds.features.Text(), "label": tfds.features.ClassLabel(names=["bad", "good"])}
    )
    supervised_keys = ("text", "label")

    def _generate_examples(self):
        yield from ((i, {"text": de, "label": i % 2}) for i, de in enumerate(GERMAN))


@pytest.fixture(scope="module")
def array_record(tmp_path_factory):
    data_dir = tmp_path_factory.mktemp("array_record")
    prepared(Pairs, data_dir)
    prepared(Plain, data_dir)
    return data_dir


def in_format(folder, file_format):
    """Edits what a data set says of its files."""
    path = folder / "dataset_info.json"
    info = json.loads(path.read_text())
    info["fileFormat"] = file_format
    for split in info["splits"]:
        split["filepathTemplate"] = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
    path.write_text(json.dumps(info))


@pytest.fixture
def tfrecord(array_record, tmp_path):
    """The same data set as TensorFlow would have written it, but for the checksums."""
    builder = tfds.builder_from_directory(array_record / "pairs" / "1.0.0")
    serialize = tfds.core.example_serializer.ExampleSerializer(
        builder.info.features.get_serialized_info()
    ).serialize_example
    folder = tmp_path / "pairs" / "1.0.0"
    folder.mkdir(parents=True)
    for name in ("dataset_info.json", "features.json"):
        shutil.copy(array_record / "pairs" / "1.0.0" / name, folder)
    in_format(folder, "tfrecord")
    for split in ("train", "test"):
        source, done = builder.as_data_source(split), 0
        lengths = builder.info.splits[split].shard_lengths
        for shard, length in enumerate(lengths):
            with open(
                folder / f"pairs-{split}.tfrecord-{shard:05}-of-{len(lengths):05}", "wb"
            ) as f:
                for i in range(done, done + length):
                    payload = serialize(builder.info.features.encode_example(source[i]))
                    f.write(struct.pack("<QI", len(payload), 0) + payload + bytes(4))
            done += length
    return tmp_path


def examples(source):
    return [source[i] for i in range(len(source))]


@pytest.mark.parametrize("in_memory", [0, 100])
@pytest.mark.parametrize("split", ["train", "test[5:19]", "train[:50%]+test[20:]"])
def test_tfrecord_is_read_as_array_record_is(array_record, tfrecord, split, in_memory, monkeypatch):
    expected = examples(open_tfds("pairs", split=split, data_dir=array_record))
    assert len(expected) == {"train": 23, "test[5:19]": 14}.get(split, 12 + 3)
    assert set(map(tuple, expected)) == {("source", "target")}
    monkeypatch.setattr(texts, "IN_MEMORY", in_memory)
    monkeypatch.setattr(texts, "CHUNK", 7)
    for data_dir in (array_record, tfrecord):
        source = open_tfds("pairs", split=split, data_dir=data_dir)
        assert examples(source) == expected
        assert examples(pickle.loads(pickle.dumps(source))) == expected  # as workers get it


@pytest.mark.parametrize("in_memory", [0, 100])
def test_a_text_that_is_not_utf8_is_refused_with_its_place(monkeypatch, in_memory):
    class Records(list):
        def __getitems__(self, indices):
            return [self[i] for i in indices]

    monkeypatch.setattr(texts, "IN_MEMORY", in_memory)
    with pytest.raises(Invalid, match="example 1: not UTF-8, byte 0xe4 at place 2; prepare"):
        texts.Texts(Records([{"de": b"a"}, {"de": b"k\xe4"}]), {"source": "de"})[1]


def test_which_text_is_which(array_record):
    pair = dict(zip(GERMAN, ENGLISH, strict=True))
    found = examples(open_tfds("pairs:1.0.0", split="train", data_dir=array_record))
    assert {example["source"]: example["target"] for example in found} == pair
    turned = {"source": "en", "target": "de"}
    back = open_tfds("pairs", split="train", data_dir=array_record, features=turned)
    assert examples(back) == [{"source": e["target"], "target": e["source"]} for e in found]
    texts = examples(open_tfds("plain", split="train", data_dir=array_record))
    assert sorted(example["text"] for example in texts) == sorted(GERMAN)


def test_the_newest_version_is_taken(array_record, tmp_path):
    for version in ("1.0.0", "10.0.0", "9.0.0"):
        shutil.copytree(array_record / "pairs" / "1.0.0", tmp_path / "pairs" / version)
    for version in ("1.0.0", "9.0.0"):
        in_format(tmp_path / "pairs" / version, "parquet")
    assert len(open_tfds("pairs", split="train", data_dir=tmp_path)) == 23
    with pytest.raises(Invalid, match="pairs:9.0.0 is in parquet files: TFDS loses examples when"):
        open_tfds("pairs:9.0.0", split="train", data_dir=tmp_path)


def test_what_is_not_there_is_said_in_one_line(array_record):
    get = lambda name, split="train", **k: open_tfds(name, split=split, data_dir=array_record, **k)  # noqa: E731
    with pytest.raises(Invalid) as error:
        get("wmt14_translate/de-en")
    assert str(error.value) == (
        f"no wmt14_translate/de-en in {array_record} (there is nothing of that name); prepare it "
        "once where TensorFlow installs: pip install 'attnlab[prepare]' && tfds build "
        f"wmt14_translate/de-en --data_dir={array_record} --file_format=array_record"
    )
    with pytest.raises(Invalid, match=r"no pairs/de-en in .* \(there is pairs/1\.0\.0\); prepare"):
        get("pairs/de-en")
    with pytest.raises(Invalid, match=r"no pairs:2\.0\.0 in .* \(there is pairs/1\.0\.0\)"):
        get("pairs:2.0.0")
    with pytest.raises(Invalid, match="pairs has no split 'dev'; it has test, train"):
        get("pairs", "dev")
    with pytest.raises(Invalid, match="pairs has the texts de, en, not fr, en; name its features"):
        get("pairs", features={"source": "fr", "target": "en"})


def test_records_that_are_not_whole_are_refused(tfrecord):
    folder = tfrecord / "pairs" / "1.0.0"
    first = min(folder.glob("pairs-train.tfrecord-*"))
    whole = first.read_bytes()
    count = len(TFRecords([Shard(first)]))
    for lost in (1, 5, len(whole) - 7):
        first.write_bytes(whole[:-lost])
        with pytest.raises(Invalid, match=r"-00000-of-00003 ends within record \d; prepare the"):
            open_tfds("pairs", split="train", data_dir=tfrecord)
    first.write_bytes(b"")
    with pytest.raises(Invalid, match=f"has 0 records, not {count}; prepare the data set again"):
        open_tfds("pairs", split="train", data_dir=tfrecord)
    first.unlink()
    with pytest.raises(Invalid, match="no file .*-00000-of-00003; the data set is not whole"):
        open_tfds("pairs", split="train", data_dir=tfrecord)


def test_a_class_is_its_number(tmp_path):
    prepared(Labelled, tmp_path)
    features = {"text": "text", "label": "label"}
    source = open_tfds("labelled", split="train", data_dir=tmp_path, features=features)
    found = sorted((source[i]["text"], source[i]["label"]) for i in range(len(source)))
    assert found == sorted((text, str(i % 2)) for i, text in enumerate(GERMAN))
    assert set(open_tfds("labelled", split="train", data_dir=tmp_path)[0]) == {"text"}
