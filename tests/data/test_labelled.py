"""Texts with labels: what they hold, and what is refused."""

import pytest

from attnlab.data.labelled import classes_of, read_labelled
from attnlab.runs.errors import Invalid


def test_a_line_has_a_label_and_a_text(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("10\ta\tb\n2\tc\n")
    rows = read_labelled(path)
    assert rows == [{"text": "a\tb", "label": "10"}, {"text": "c", "label": "2"}]
    assert classes_of({"train": rows, "test": rows[:1]}) == ["2", "10"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1\ta\nb\n", "line 2: must be label, tab, text; got no tab"),
        ("1\ta\n\tb\n", "line 2: the label or the text is empty; remove the line"),
        ("", "there is no example in it; give lines of label, tab, text"),
    ],
)
def test_a_file_without_labels_is_refused(tmp_path, text, message):
    (tmp_path / "a.tsv").write_text(text)
    with pytest.raises(Invalid, match=message) as refused:
        read_labelled(tmp_path / "a.tsv")
    assert "\n" not in str(refused.value)


def test_a_label_that_was_not_in_training_is_refused():
    train = [{"text": "a", "label": x} for x in ("good", "bad")]
    strange = [train[0], {"text": "b", "label": "ugly"}]
    message = "example 2 of test has the label 'ugly', which was not in training: bad, good"
    with pytest.raises(Invalid, match=message):
        classes_of({"train": train, "test": strange})
    with pytest.raises(Invalid, match="training has the label good alone; give at least two"):
        classes_of({"train": train[:1]})
    with pytest.raises(Invalid, match="training has no example; give at least two classes"):
        classes_of({"train": []})
