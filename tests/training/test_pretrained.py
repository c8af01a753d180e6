"""A pre-trained BERT as a folder."""

import numpy as np
import pytest

from attnlab.data.tokenizers import Bytes
from attnlab.runs.errors import Invalid
from attnlab.training import pretrained
from attnlab.training.pretrained import BertSizes, Pretrained

LINES = [f"ab{d} cd ef{i} gh" for d in range(20) for i in range(4)]


def test_sizes_build_what_they_say():
    sizes = BertSizes(2, 8, 8, 2, 16, attention="window-2+lsh-3")
    assert sizes.streams == ("dropout", "hash")
    _, (window, lsh) = sizes.build(9)
    assert (window.route.left, window.route.right, lsh.route.num_hashes) == (2, 2, 3)
    made = Pretrained("x", 0, sizes, Bytes())
    assert made.vocab_size == 261


def test_subwords_are_kept_with_their_model(tmp_path, monkeypatch):
    tokenizer = pretrained.make_tokenizer(
        "sentencepiece", LINES, vocab_size=40, cache_dir=str(tmp_path / "cache")
    )
    params = {"bert": {"vocabulary": {"embedding": np.ones((41, 8), np.float32)}}}
    made = Pretrained("x", 3, BertSizes(1, 8, 8, 2, 16), tokenizer, params)
    pretrained.write(made, tmp_path)
    (found,) = pretrained.read(tmp_path)
    assert (found.title, found.seed, found.sizes) == ("x", 3, made.sizes)
    assert found.tokenizer.digest == tokenizer.digest and found.vocab_size == 41
    assert found.tokenizer.encode(LINES[0]) == tokenizer.encode(LINES[0])
    np.testing.assert_array_equal(found.params["bert"]["vocabulary"]["embedding"], np.ones((41, 8)))
    with monkeypatch.context() as patch:  # as a disk that is full while they are written again
        patch.setattr(pretrained.np, "savez", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            pretrained.write(made, tmp_path)
    assert not (tmp_path / "pretrained.json").exists()
    pretrained.write(made, tmp_path)
    model = (tmp_path / "tokenizer.model").read_bytes()
    (tmp_path / "tokenizer.model").write_bytes(model[:500])
    with pytest.raises(Invalid, match="tokenizer.model is another or damaged"):
        pretrained.read(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(model)
    (tmp_path / "params.npz").write_bytes(b"")
    with pytest.raises(Invalid, match="its files cannot be read"):
        pretrained.read(tmp_path)
