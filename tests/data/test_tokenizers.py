import pickle
import pwd

import pytest
import sentencepiece

from attnlab.core.tokens import BOS, EOS, NUM_SPECIAL, PAD, UNK
from attnlab.data import subwords as subwords_module
from attnlab.data.cache import default_cache_dir
from attnlab.data.dates import Dates
from attnlab.data.subwords import train_sentencepiece
from attnlab.data.tokenizers import Bytes, Characters, Numbers
from attnlab.runs.errors import Invalid

DATES = Dates(size=500)


@pytest.fixture(scope="module")
def subwords(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    return train_sentencepiece(DATES, vocab_size=120, cache_dir=folder)


def round_trips(tokenizer, text):
    ids = tokenizer.encode(text)
    assert all(NUM_SPECIAL <= token < tokenizer.vocab_size for token in ids)
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode([BOS, *ids, PAD, EOS, ids[0], PAD]) == text


def test_text_comes_back(subwords):
    round_trips(Bytes(), "naïve 注意 \0\n")
    round_trips(Numbers(11), "0 10 3")
    round_trips(Characters.of("注意naïve \0\n"), "naïve 注意 \0\n")
    for i in range(20):
        round_trips(subwords, DATES[i]["source"])


def test_references_come_back_as_they_are(tmp_path):
    """NFKC and folded blanks would make a perfect translation wrong."""
    texts = ["5\u00a0€\u202f!  ½ ﬁn ", "他说：“ＡＢＣ，好。”", " a\tb\u3000"]
    source = [{"target": text} for text in texts]
    made = train_sentencepiece(source, ["target"], vocab_size=39, cache_dir=tmp_path)
    for text in texts:
        round_trips(made, text)
        assert "".join(text[a:b] for a, b in made.places(text)) == text


def test_vocabularies():
    assert Bytes().vocab_size == 260
    assert max(Bytes().encode("\xff")) < 260
    assert Bytes().encode("a\udcff") == [NUM_SPECIAL + 97, NUM_SPECIAL + 255]  # --prompt=$'a\xff'
    assert Numbers(11).encode("10 11 -2") == [14, UNK, UNK]
    characters = Characters.of("baab")
    assert (characters.vocab_size, characters.encode("abc")) == (6, [4, 5, UNK])
    assert characters.pieces([0, 4, 5]) == ["<pad>", "a", "b"]
    assert characters.digest == Characters.of("ab").digest != Characters.of("ac").digest
    assert Bytes().decode([NUM_SPECIAL + 0xC3, EOS]) == "\ufffd"  # half a character


def test_subwords_have_the_special_ids(subwords):
    model = sentencepiece.SentencePieceProcessor(model_proto=subwords.model)
    special = (model.pad_id(), model.bos_id(), model.eos_id(), model.unk_id())
    assert special == (PAD, BOS, EOS, UNK)
    assert subwords.vocab_size == 120
    assert UNK in subwords.encode("Ω")
    example = DATES[0]["target"]
    assert len(subwords.encode(example)) < len(example)


def test_subwords_survive_pickling(subwords):
    copy = pickle.loads(pickle.dumps(subwords))
    assert (copy.digest, copy.encode("May 5")) == (subwords.digest, subwords.encode("May 5"))


def test_training_is_deterministic_and_cached(tmp_path, monkeypatch):
    train = lambda folder, **k: train_sentencepiece(DATES, vocab_size=99, cache_dir=folder, **k)  # noqa: E731
    first, again = train(tmp_path / "a"), train(tmp_path / "b")
    assert first.digest == again.digest
    monkeypatch.setattr(sentencepiece.SentencePieceTrainer, "train", None)
    assert train(tmp_path / "a").digest == first.digest
    with pytest.raises(TypeError):  # it would have to be trained
        train(tmp_path / "a", sides=["source"])


def test_training_reads_some_of_very_many(monkeypatch):
    monkeypatch.setattr(subwords_module, "MAX_EXAMPLES", 100)
    read = list(subwords_module.texts(DATES, ["target"]))
    assert read == [DATES[i]["target"] for i in range(0, 500, 5)]


def test_long_texts_are_read_as_well(tmp_path):
    text = "a long line " * 500 + "zebra"
    source = [{"source": text, "target": "short"}]
    made = train_sentencepiece(source, vocab_size=23, cache_dir=tmp_path)
    assert UNK not in made.encode(text)


def test_a_vocabulary_that_cannot_be(tmp_path):
    with pytest.raises(Invalid, match=r"vocab_size=9999 .* set it to a value <= \d+\.$"):
        train_sentencepiece(DATES, vocab_size=9999, cache_dir=tmp_path)
    with pytest.raises(Invalid, match="smaller than required_chars. 9 vs"):
        train_sentencepiece(DATES, vocab_size=9, cache_dir=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_user_without_a_home_has_a_cache_too(monkeypatch):
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)  # knows nobody
    assert default_cache_dir().is_absolute()


def test_a_cache_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(Invalid, match="cannot write to the cache folder .*; name another"):
        train_sentencepiece(DATES, vocab_size=99, cache_dir=tmp_path / "file")
