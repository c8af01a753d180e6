"""What `pretrain` says of a text that its settings cannot divide."""

import pytest

from attnlab.runs.errors import Invalid
from experiments.pretrain.__main__ import open_corpus
from experiments.pretrain.settings import Settings


@pytest.mark.parametrize(
    ("held_out", "said"),
    [
        (0.1, "--held_out=0.1 leaves 1 of its 14 documents to validate on; pre-training needs two"),
        (0.9, "--held_out=0.9 leaves 1 of its 14 documents to train on; pre-training needs two"),
    ],
)
def test_the_part_with_too_few_documents_is_named(tmp_path, held_out, said):
    (tmp_path / "text").write_text("\n\n".join(["a b\nc d"] * 14))
    with pytest.raises(Invalid, match=said) as refused:
        open_corpus(Settings(input=str(tmp_path / "text"), held_out=held_out))
    assert str(refused.value).startswith(f"--input={tmp_path / 'text'}: ")
