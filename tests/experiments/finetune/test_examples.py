import json

import numpy as np
import pytest

from attnlab.core.tokens import BOS, EOS
from attnlab.data.subwords import train_sentencepiece
from attnlab.data.tokenizers import Bytes
from attnlab.runs.errors import Invalid
from experiments.finetune import made
from experiments.finetune.data import in_order
from experiments.finetune.encode import NONE, Encoder, labels_of
from experiments.finetune.examples import Classified, Span, Tagged, read
from experiments.finetune.score import (
    answer_of,
    entities,
    have_entities,
    of_spans,
    of_tags,
    out_of_reach,
)

CONTEXT = "It was  Ann Lee, they say."
WHO = {"question": "Who?", "answers": [{"text": "Ann Lee", "answer_start": 8}]}


def squad(*asked, context=CONTEXT):
    """SQuAD's file of one paragraph, with these questions."""
    paragraphs = [{"context": context, "qas": asked}]
    return json.dumps({"data": [{"paragraphs": paragraphs}]}, indent=1)


def file(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    return tmp_path / name


@pytest.mark.parametrize(
    ("name", "text", "columns"),
    [
        ("a.tsv", "index\tsentence1\tsentence2\tlabel\n7\ta b\tc\tyes\n8\td\te f\tno\n", ()),
        ("b.tsv", "yes\t-\ta b\tc\nno\t-\td\te f\n", ("3", "4", "1")),
        ("c.tsv", "x\ty\tz\na b\tc\tyes\nd\te f\tno\n", ("x", "y", "z")),
        ("d.jsonl", '{"premise": "a b", "hypothesis": "c", "gold_label": "yes"}\n\n'
         '{"premise": "d", "hypothesis": "e f", "gold_label": "no"}\n', ()),
    ],
)  # fmt: skip
def test_sentences_and_pairs(tmp_path, name, text, columns):
    found = read("classify", file(tmp_path, name, text), columns)
    assert [(one.texts, one.label) for one in found] == [
        (("a b", "c"), "yes"),
        (("d", "e f"), "no"),
    ]


def test_one_sentence_has_one_segment(tmp_path):
    (one,) = read("classify", file(tmp_path, "a.tsv", "sentence\tlabel\nab\t1\n"))
    row = Encoder(Bytes(), 9, ("0", "1"))(one)
    assert row.tokens.tolist() == [BOS, *Bytes().encode("ab"), EOS]
    assert not row.types.any() and row.label == 1


def test_words_have_their_tags_at_their_first_token(tmp_path):
    text = "-DOCSTART- -X- O\n\nAnn NNP B-PER\nis VBZ O\n\nHo NNP B-PER\n"
    first, second = read("tag", file(tmp_path, "a.conll", text))
    assert (first.words, first.tags) == (("Ann", "is"), ("B-PER", "O"))
    assert second.where.endswith("line 6")
    labels = labels_of([first, second])
    row = Encoder(Bytes(), 20, labels)(first)
    at = np.flatnonzero(row.label != NONE)
    assert at.tolist() == [1, 5] and [labels[row.label[i]] for i in at] == ["B-PER", "O"]
    short = Encoder(Bytes(), 7, labels, cut=True)(first)
    assert short.label.tolist() == row.label[:6].tolist() + [NONE]


def test_answers_are_found_again(tmp_path):
    text = squad(WHO, {"question": "When?", "answers": [], "is_impossible": True})
    examples = read("span", file(tmp_path, "a.json", text))
    assert len(examples) == 2
    rows = [Encoder(Bytes(), 50, ())(one) for one in examples]
    assert rows[-1].label.tolist() == [0, 0]
    logits = [np.full((2, len(row.tokens)), -9.0) for row in rows]
    for scores, row in zip(logits, rows, strict=True):
        scores[[0, 1], row.label] = 9
    assert answer_of(logits[0], rows[0], examples[0]) == "Ann Lee"
    assert of_spans(logits, rows, examples) == {"f1": 1, "exact match": 1}
    logits[0][1, rows[0].label[1]], logits[0][1, rows[0].label[0] + 2] = -9, 9  # "Ann" alone
    assert of_spans(logits[:1], rows[:1], examples[:1]) == {
        "f1": pytest.approx(2 / 3),
        "exact match": 0,
    }


@pytest.mark.parametrize(
    ("task", "name", "text", "said"),
    [
        ("classify", "a.tsv", "sentence\tlabel\n\t1\n", "a.tsv, line 2: an empty text"),
        ("classify", "a.tsv", "sentence\tlabel\nab\n", "line 2: 1 columns, and the first line has"),
        ("classify", "a.tsv", "a\tb\nc\td\n", "line 2: columns a, b, of which none is known"),
        ("classify", "a.jsonl", "[1]\n", "a.jsonl, line 1: not a JSON object"),
        ("classify", "a.tsv", "sentence\tlabel\n", "there are no examples in it"),
        ("tag", "a.conll", "Ann B\n\nis\n", "a.conll, line 3: a word without a tag"),
        ("span", "a.json", '{"question": "q"}', "needs question, context and answers"),
        ("span", "a.json", squad(WHO, context=" "), "question 1: an empty context"),
        ("span", "a.json", squad(WHO, context="no"), "has no 'Ann Lee' at character"),
        ("classify", "a.jsonl", '{"text": null, "label": null}', "line 1: 'text' is null, not a"),
        ("classify", "a.jsonl", '{"text": NaN, "label": 1}', "line 1: 'text' is NaN, not a text"),
        ("classify", "a.jsonl", '{"text": "a \\ud83d", "label": 1}', "not a text of whole"),
        ("span", "a.json", squad(WHO | {"question": "a \ud83d"}), "not a text of whole"),
        ("classify", "a.tsv", "text\ttext\tlabel\na\tb\tc\n", "line 1: two columns are called"),
        ("tag", "a.conll", "is O\nNew York B-LOC\n", "line 2: 3 columns, and the first word has 2"),
        ("tag", "a.conll", "-DOCSTART- O\nAnn B\nis\n", "a.conll, line 3: a word without a tag"),
        ("span", "a.json", squad(WHO | {"question": 1}), "question 1: question is 1, not a"),
        ("span", "a.json", squad(WHO | {"answers": [{"text": "A", "answer_start": "0"}]}),
         "an answer is 'A' at '0'; give a text and the number"),
        ("span", "a.json", '{"data": 7}', "question 1: needs question, context and answers"),
        ("span", "a.json", squad(WHO, {"question": "q"}), "question 2: needs"),
    ],
)  # fmt: skip
def test_bad_files_are_refused_in_one_line(tmp_path, task, name, text, said):
    with pytest.raises(Invalid, match=said) as caught:
        read(task, file(tmp_path, name, text))
    assert "\n" not in str(caught.value)


def test_what_a_model_cannot_read_is_refused():
    encode = Encoder(Bytes(), 6, ("a", "b"))
    with pytest.raises(
        Invalid, match="x, line 3: the label 'c' was not in training; there are a, b"
    ):
        encode(Classified(("t",), "c", "x, line 3"))
    with pytest.raises(Invalid, match="x: 8 tokens, and the model has 6 positions; give --cut"):
        encode(Classified(("abc", "de"), "a", "x"))
    cut = Encoder(Bytes(), 6, ("a", "b"), cut=True)(Classified(("abc", "de"), "a", "x"))
    assert len(cut.tokens) == 6 and set(cut.types) == {0, 1}
    with pytest.raises(Invalid, match="x: 7 tokens, and the model has 6"):
        encode(Tagged(("ab", "c"), ("a", "a"), "x"))


def test_rows_are_padded_and_filled_without_labels():
    encode = Encoder(Bytes(), 9, ("a", "b"))
    (batch,) = in_order([encode(Classified((text,), "b", "")) for text in ("x", "yz")], 5, 3)
    assert batch["tokens"].shape == (3, 5) and not batch["tokens"][2].any()
    assert batch["label"].tolist() == [1, 1, NONE]
    (tagged,) = in_order([encode(Tagged(("x",), ("b",), ""))], 5, 2)
    assert tagged["label"].tolist() == [[NONE, 1, NONE, NONE, NONE], [NONE] * 5]


def test_f1_of_tags_is_of_entities_or_of_the_rarest_tag():
    def score(labels, wanted, chosen, positions=20):
        example = Tagged(tuple("abcd"), tuple(wanted), "")
        row = Encoder(Bytes(), positions, labels, cut=True)(example)
        logits = np.zeros((len(row.tokens), len(labels)))
        at = np.flatnonzero(row.label != NONE)
        logits[at, [labels.index(tag) for tag in chosen]] = 1
        return of_tags([logits], [row], [example], labels)

    found = score(("B-X", "I-X", "O"), ["B-X", "I-X", "O", "B-X"], ["B-X", "O", "O", "B-X"])
    assert found == {"f1": 0.5, "accuracy": 0.75}  # one of two entities, of two that were said
    found = score(("r", "w"), list("rwrw"), list("rwrr"))
    assert found["accuracy"] == 0.75
    rare = score(("r", "w"), list("rrrw"), list("rrww"))
    assert rare["f1"] == pytest.approx(2 / 3)
    absent = score(("N", "V", "X"), list("NNNV"), list("NNNV"))
    assert absent == {"f1": 1.0, "accuracy": 1.0}
    none = score(("B-X", "O"), "OOOO", "OOOO")
    assert none == {"f1": 1.0, "accuracy": 1.0}
    cut = score(("B-X", "O"), ["B-X", "O", "B-X", "O"], ["B-X", "O"], positions=6)
    assert cut == {"f1": pytest.approx(2 / 3), "accuracy": 0.5}


@pytest.mark.parametrize("parts", ["BIIBB", "IIIBB", "BIESS", "BILUU", "BMEWW"])
def test_entities_are_the_same_in_every_scheme(parts):
    """Merged neighbors would make a wrong model right."""
    tags = [f"{part}-X" for part in parts]
    assert entities(["O", *tags, "I-Y", "I-Y"]) == {
        (1, 4, "X"), (4, 5, "X"), (5, 6, "X"), (6, 8, "Y")
    }  # fmt: skip
    assert have_entities(["O", *tags]) and not have_entities(["O", "NN"])
    with pytest.raises(Invalid, match="the tag 'PER' is no part of an entity, and 'B-X' is"):
        have_entities(["O", "B-X", "PER"])


def test_a_word_has_the_blanks_that_its_line_does_not_divide_at(tmp_path):
    (tabs,) = read("tag", file(tmp_path, "a", "New York\tB-LOC\nis\tO\n"))
    (blanks,) = read("tag", file(tmp_path, "b", "New\u00a0York  B-LOC\nis O \n"))
    assert (tabs.words, blanks.words) == (("New York", "is"), ("New\u00a0York", "is"))
    assert tabs.tags == blanks.tags == ("B-LOC", "O")


def test_a_word_without_a_token_keeps_the_others_at_their_tags():
    class Dropping(Bytes):
        def encode(self, text):
            return [] if text == "- " else super().encode(text)

    row = Encoder(Dropping(), 20, ("a", "b"))(Tagged(("-", "x"), ("b", "a"), ""))
    assert row.label[row.label != NONE].tolist() == [1, 0]


def test_a_perfect_model_is_right_whatever_a_token_is(tmp_path):
    long = "the counter-revolutionary administrations"  # 41 bytes, BERT's 30 tokens are WordPieces
    contexts = (f"He fled from {long}!", "他们在公园里玩。", "It was 5\u00a0€ (1990–95), ½ off ")
    examples = [
        Span("Q", context, ((text, context.index(text)),), "x")
        for context, text in zip(contexts, (long, "公园", "1990"), strict=True)
    ]
    texts = [{"text": c} for context in contexts for c in (context, *context)]
    letters = train_sentencepiece(texts, ("text",), vocab_size=50, cache_dir=tmp_path)
    for tokenizer in (Bytes(), letters):
        rows = [Encoder(tokenizer, 80, ())(one) for one in examples]
        logits = [np.zeros((2, len(row.tokens))) for row in rows]
        for scores, row in zip(logits, rows, strict=True):
            scores[[0, 1], row.label] = 9
        assert of_spans(logits, rows, examples) == {"f1": 1, "exact match": 1}
        assert out_of_reach(rows, examples) == 0
    rows[0].label[1] -= 1
    assert out_of_reach(rows, examples) == 1


def test_an_answer_is_of_words_of_the_context():
    one = Span("Q", "cat sat", (("sat", 4),), "x")
    row = Encoder(Bytes(), 30, ())(one)
    scores = np.zeros((2, len(row.tokens)))
    first, last = row.label
    scores[0, first], scores[1, last], scores[1, -1] = 5, 4.9, 5  # [SEP] is the likeliest end
    assert answer_of(scores, row, one) == "sat"
    scores[:, 0] = 9
    assert answer_of(scores, row, one) == ""


def test_a_line_of_one_word_again_and_again_is_never_swapped(tmp_path):
    path = file(tmp_path, "text", "\n\n".join(["no no no no\nno no no"] * 40))
    found = made.examples("order", path, train=20, test=4, held_out=0.3)
    assert {one.label for some in found.values() for one in some} == {"written"}


TEXT = "\n\n".join(
    "\n".join(f"word{d} goes to line{i} of this{d * i} text" for i in range(5)) for d in range(30)
)


@pytest.mark.parametrize("kind", made.MADE)
def test_made_tasks_are_of_the_text_and_always_the_same(tmp_path, kind):
    path = file(tmp_path, "text", TEXT)
    sizes = {"train": 60, "test": 8, "held_out": 0.3}
    found = made.examples(kind, path, **sizes)
    assert found == made.examples(kind, path, **sizes)
    assert {name: len(some) for name, some in found.items()} == {"train": 60, "dev": 8, "test": 8}
    lines = set(TEXT.split("\n"))
    held_out = {f"word{d}" for d in range(21, 30)}
    for name, some in found.items():
        for one in some:
            if kind == "spelling":
                wrong = [a for a, tag in zip(one.words, one.tags, strict=True) if tag == "wrong"]
                assert (" ".join(one.words) in lines) == (not wrong)
            elif kind == "order":
                assert (one.texts[0] in lines) == (one.label == "written")
                assert " ".join(sorted(one.texts[0].split())) in {
                    " ".join(sorted(line.split())) for line in lines
                }
                assert (name == "train") != any(w in held_out for w in one.texts[0].split())
            else:
                at = [TEXT.find(text) for text in one.texts]
                assert (one.label == "follows") == (at[1] == at[0] + len(one.texts[0]) + 1)
                assert "line0" not in one.texts[1]  # which no line is before
    with pytest.raises(Invalid, match=f"lines for 1000 train examples of {kind}; give fewer"):
        made.examples(kind, path, train=1000, test=8, held_out=0.3)


def test_columns_of_one_name_are_refused_only_where_they_are_read(tmp_path):
    path = file(tmp_path, "a.tsv", "x\tx\tt\tl\n1\t2\tab\tyes\n")
    (one,) = read("classify", path, ("t", "l"))
    assert (one.texts, one.label) == (("ab",), "yes")
    with pytest.raises(Invalid, match="two columns are called 'x'; name them apart"):
        read("classify", path, ("x", "l"))


@pytest.mark.parametrize(
    ("kind", "documents", "said"),
    [
        ("order", 14, "of 14 documents leaves 0 for the test examples, and order needs 1; give"),
        ("follows", 20, "of 20 documents leaves 1 for the dev examples, and follows needs 2; give"),
    ],
)
def test_too_few_documents_are_said_as_such(tmp_path, kind, documents, said):
    path = file(tmp_path, "text", "\n\n".join(["a b c d\ne f g h"] * documents))
    with pytest.raises(Invalid, match=f"--held_out=0.1 {said}"):
        made.examples(kind, path, train=2, test=1, held_out=0.1)


def test_spans_outside_of_what_was_cut_have_no_answer():
    one = Span("Q", "aa bb cc", (("cc", 6),), "x")
    with pytest.raises(Invalid, match="x: 12 tokens"):
        Encoder(Bytes(), 8, ())(one)
    assert Encoder(Bytes(), 8, (), cut=True)(one).label.tolist() == [0, 0]
