"""A Reformer with Hugging Face's weights computes what Hugging Face's does, given its buckets."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab.models.reformer import Reformer, from_hugging_face, to_hugging_face
from attnlab.ops.lsh import hash_buckets, make_rotations
from tests.models.test_hugging_face import assert_same
from tests.modules.reference import apply

pytestmark = pytest.mark.slow
WHY = "the peer is the oracle; it comes with the extra `compat`"
ROUNDS, BUCKETS = 2, 6
SIZES = {
    "attn_layers": ["local", "lsh", "local"],
    "is_decoder": True,
    "axial_pos_shape": [5, 8],
    "axial_pos_embds_dim": [6, 20],
    "hidden_size": 26,
    "num_attention_heads": 3,
    "attention_head_size": 7,
    "feed_forward_size": 31,
    "chunk_size_feed_forward": 8,
    "vocab_size": 53,
    "max_position_embeddings": 40,
    "num_hashes": ROUNDS,
    "num_buckets": BUCKETS,
    "lsh_attn_chunk_length": 4,
    "local_attn_chunk_length": 5,
    "hidden_act": "gelu",
}


@pytest.fixture(scope="module")
def torch():
    """Not imported until a test runs: it takes seconds, and `transformers` as well."""
    return pytest.importorskip("torch", reason=WHY)


@pytest.fixture(scope="module")
def transformers(torch):
    return pytest.importorskip("transformers", reason=WHY)


@pytest.fixture(scope="module")
def theirs(torch, transformers):
    torch.manual_seed(0)
    model = transformers.ReformerModelWithLMHead(transformers.ReformerConfig(**SIZES))
    for p in model.parameters():  # theirs are nearly 0, and biases and norms say nothing
        torch.nn.init.normal_(p, std=0.3)
    # Recent releases hold a bias that they do not add.
    torch.nn.init.zeros_(model.lm_head.bias)
    return model.double().eval()


def our_buckets(module, vectors, num_hashes, attention_mask, increase_num_buckets=False):
    """Buckets of [B, N, L, H] by our rotations, as their `_hash_vectors` returns them."""
    del module, attention_mask, increase_num_buckets
    _, heads, length, width = vectors.shape
    rotations = make_rotations(
        jax.random.key(0),
        num_heads=heads,
        head_dim=width,
        num_hashes=num_hashes,
        num_buckets=BUCKETS,
    )
    buckets = hash_buckets(jnp.asarray(vectors.detach().numpy()).swapaxes(1, 2), rotations)
    offset = np.asarray(buckets) + BUCKETS * np.arange(num_hashes)[:, None, None]
    return np.moveaxis(offset, 3, 1).reshape(len(vectors), heads, -1).astype(np.int64)


def test_logits(x64, torch, theirs, monkeypatch):
    modeling = importlib.import_module("transformers.models.reformer.modeling_reformer")
    monkeypatch.setattr(
        modeling.LSHSelfAttention,
        "_hash_vectors",
        lambda *x, **options: torch.from_numpy(our_buckets(*x, **options)),
    )
    tokens = np.random.default_rng(0).integers(0, 53, (2, 40))
    config, state = theirs.config.to_dict(), theirs.state_dict()
    ours, variables = from_hugging_face(config, state, param_dtype=jnp.float64)
    carried = to_hugging_face(config, variables)
    assert_same(carried, state)
    peer = type(theirs)(theirs.config).double().eval()
    peer.load_state_dict({name: torch.from_numpy(x) for name, x in carried.items()})
    with torch.no_grad():
        want = peer(torch.from_numpy(tokens)).logits.numpy()
    ours = ours.copy(stream_dtype=jnp.float64)
    got = apply(ours, variables, None, tokens, method="decode")
    np.testing.assert_allclose(got, want, atol=1e-9)


def test_enwik8_is_the_released_model(torch, transformers):
    """Every array of the released configuration has its place, by shapes alone."""
    with torch.device("meta"):
        model = transformers.ReformerModelWithLMHead(
            transformers.ReformerConfig(
                attn_layers=["local", "local", "lsh", "local"] * 3,
                is_decoder=True,
                axial_pos_shape=[128, 512],
                axial_pos_embds_dim=[256, 768],
                hidden_size=1024,
                num_attention_heads=8,
                attention_head_size=128,
                feed_forward_size=4096,
                vocab_size=258,
                max_position_embeddings=65536,
                num_hashes=2,
                num_buckets=512,
                lsh_attn_chunk_length=256,
                local_attn_chunk_length=128,
                hidden_act="relu",
                tie_word_embeddings=False,
            )
        )
    weights = {
        name: np.broadcast_to(np.float32(0), x.shape) for name, x in model.state_dict().items()
    }
    loaded, variables = from_hugging_face(model.config.to_dict(), weights)
    ours = Reformer.enwik8(scan_layers=False)
    assert loaded.config.width == ours.config.width
    made = jax.eval_shape(ours.init, jax.random.key(0), jnp.ones((1, 8), int))
    assert jax.tree.map(np.shape, variables) == jax.tree.map(np.shape, dict(made))
    assert sum(x.size for x in jax.tree.leaves(made["params"])) == 149_182_722


def test_old_files_name_the_bias_otherwise(theirs):
    old = theirs.state_dict()
    old["lm_head.bias"] = old.pop("lm_head.decoder.bias", old["lm_head.bias"])
    _, variables = from_hugging_face(theirs.config.to_dict(), old)
    np.testing.assert_array_equal(variables["params"]["softmax"]["bias"], old["lm_head.bias"])


def test_a_saved_configuration_leaves_out_what_is_usual(theirs):
    usual = theirs.config.to_dict()
    del usual["chunk_size_feed_forward"]
    model, _ = from_hugging_face(usual, theirs.state_dict())
    assert model.config.feed_forward_chunk is None
    with pytest.raises(ValueError, match="scan_layers says what is computed"):
        from_hugging_face(usual, theirs.state_dict(), scan_layers=True)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"attn_layers": ["local", "lsh"]}, r"weights must be of this configuration; got \["),
        (
            {"hidden_size": 27, "axial_pos_embds_dim": [6, 21]},
            "got 'embeddings.word_emb",
        ),
    ],
)
def test_other_configurations_are_refused(theirs, changed, said):
    with pytest.raises(ValueError, match=said):
        from_hugging_face(theirs.config.to_dict() | changed, theirs.state_dict())
