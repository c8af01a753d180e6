"""Where sentence pairs come from: the embedded task, files with and without held-out splits."""

import gzip

import pytest

from attnlab.data.tokenizers import Bytes
from attnlab.runs.errors import Invalid
from experiments.translate.__main__ import as_lines, say_corpus
from experiments.translate.corpus import open_corpus
from experiments.translate.settings import SPLITS, Settings
from tests.data.tfds_sets import ENGLISH, GERMAN, Pairs, prepared

PAIRS = [(f"der Hund {i} bellt laut", f"dog {i} barks loudly") for i in range(200)]


def write(path, lines):
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
    return str(path)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Two aligned files and one TSV of the same pairs, and where they are prepared."""
    folder = tmp_path_factory.mktemp("texts")
    return {
        "pairs": (
            write(folder / "a.de.gz", [source for source, _ in PAIRS]),
            write(folder / "a.en", [target for _, target in PAIRS]),
        ),
        "tsv": (write(folder / "a.tsv", map("\t".join, PAIRS)),),
        "few": (write(folder / "few.tsv", map("\t".join, PAIRS[:5])),),
        "cache": str(folder / "cache"),
    }


def of_files(texts, name, **changed):
    given = {"vocab_size": 60, "cache_dir": texts["cache"]} | changed
    return Settings(preset="cpu", data_files=texts[name], **given)


def in_order(split):
    return [(split[i]["source"], split[i]["target"]) for i in range(len(split))]


@pytest.mark.parametrize("name", ["pairs", "tsv"])
def test_the_end_of_one_set_of_files_is_held_out(texts, name):
    corpus = open_corpus(of_files(texts, name))
    sizes = {split: len(corpus.splits[split]) for split in ("train", "validation", "test")}
    assert sizes == {"train": 196, "validation": 2, "test": 2}
    assert [pair for split in corpus.splits.values() for pair in in_order(split)] == PAIRS
    names = {"pairs": "a.de.gz a.en", "tsv": "a.tsv"}
    assert corpus.measure == "BLEU" and corpus.name == names[name]
    for joint in (False, True):
        for text, side in zip(PAIRS[-1], corpus.tokenizers(joint), strict=True):
            assert side.vocab_size == 60 and side.decode(side.encode(text)) == text


def test_a_joint_vocabulary_is_one_and_separate_ones_are_two(texts):
    corpus = open_corpus(of_files(texts, "tsv"))
    both, same = corpus.tokenizers(True)
    source, target = corpus.tokenizers(False)
    assert both is same and corpus.tokenizers(True).source is both  # trained once
    assert len({both.digest, source.digest, target.digest}) == 3


def test_only_the_vocabularies_that_are_asked_for_are_trained(texts):
    corpus = open_corpus(of_files(texts, "tsv", vocab_size=370))  # too many for one side
    assert corpus.tokenizers(True).source.vocab_size == 370
    with pytest.raises(Invalid, match="vocab_size=370 can be made of the source texts"):
        corpus.tokenizers(False)


def test_files_of_their_own_are_not_cut(texts):
    files = {"validation_files": texts["few"], "test_files": texts["pairs"]}
    corpus = open_corpus(of_files(texts, "tsv", **files))
    assert in_order(corpus.splits["train"]) == in_order(corpus.splits["test"]) == PAIRS
    assert in_order(corpus.splits["validation"]) == PAIRS[:5]


def test_a_checkpoint_can_tell_one_corpus_from_another(texts):
    one, same, other = (
        open_corpus(of_files(texts, "tsv", vocab_size=n)).tokenizers(False) for n in (60, 60, 61)
    )
    digests = [[side.digest for side in sides] for sides in (one, same, other)]
    assert digests[0] == digests[1] != digests[2]
    tsv, pairs = (open_corpus(of_files(texts, name)).digest for name in ("tsv", "pairs"))
    assert tsv != pairs


def test_too_few_pairs_to_hold_any_out_are_refused(texts):
    with pytest.raises(Invalid, match="--data_files: of 5 pairs one percent is none"):
        open_corpus(of_files(texts, "few"))


def test_references_that_no_token_writes_are_counted(texts, tmp_path, capsys):
    odd = write(tmp_path / "odd.tsv", [f"Hund\t{x}" for x in ("dog", "dog ∑", "dog\u00a01 ")])
    train = write(tmp_path / "train.tsv", [*map("\t".join, PAIRS), "Katze\tcat\u00a02"])
    flags = {"validation_files": texts["few"], "test_files": (odd,), "models": ("rnn_search",)}
    settings = of_files({**texts, "odd": (train,)}, "odd", **flags)
    say_corpus(open_corpus(settings), settings)
    assert "1 of 3 references have characters that no token writes, as 'dog ∑'" in (
        capsys.readouterr().out
    )


def test_a_translation_is_one_line():
    texts = ["a\nb", "", "c\u2028d\r", "e"]
    assert as_lines(texts).splitlines() == ["a b", "", "c d", "e"]


def test_the_embedded_task_needs_nothing():
    corpus = open_corpus(Settings()).of_seed(7)
    assert corpus.tokenizers(True) == corpus.tokenizers(False) == (Bytes(), Bytes())
    assert corpus.measure == "exact match"
    assert len(corpus.splits["validation"]) == 512 and len(corpus.splits["test"]) == 1000
    assert corpus.splits["train"][0] != open_corpus(Settings()).splits["train"][0]
    # The test split is the same whatever the seed.
    assert corpus.splits["test"][0] == open_corpus(Settings()).splits["test"][0]


class WithSplits(Pairs):
    name = "with_splits"

    def _split_generators(self, dl_manager):
        return {name: self._generate_examples() for name in SPLITS}


@pytest.mark.parametrize("direction", ["de-en", "en-de"])
def test_a_tfds_set_is_read_in_the_direction_asked_for(tmp_path, direction):
    prepared(WithSplits, tmp_path)
    given = Settings(
        preset="cpu", tfds_name="with_splits", data_dir=str(tmp_path), direction=direction,
        vocab_size=40, cache_dir=str(tmp_path / "cache"),
    )  # fmt: skip
    corpus = open_corpus(given)
    texts = {"de": GERMAN, "en": ENGLISH}
    source, target = (sorted(texts[language]) for language in direction.split("-"))
    assert set(corpus.splits) == set(SPLITS)
    for split in corpus.splits.values():
        assert sorted(split[i]["source"] for i in range(len(split))) == source
        assert sorted(split[i]["target"] for i in range(len(split))) == target
