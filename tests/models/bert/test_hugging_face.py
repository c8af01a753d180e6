"""A model with the weights of Hugging Face's BERT computes what it does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnlab.models.bert import Bert, from_hugging_face, to_hugging_face
from tests.models.test_hugging_face import assert_same
from tests.modules.reference import apply

pytestmark = pytest.mark.slow
WHY = "the peer is the oracle; it comes with the extra `compat`"
SIZES = {
    "vocab_size": 53,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 31,
    "max_position_embeddings": 17,
    "type_vocab_size": 2,
    "hidden_act": "gelu_new",
}


@pytest.fixture(scope="module")
def torch():
    """Not imported until a test runs: it takes seconds, and `transformers` as well."""
    return pytest.importorskip("torch", reason=WHY)


@pytest.fixture(scope="module")
def theirs(torch):
    transformers = pytest.importorskip("transformers", reason=WHY)
    torch.manual_seed(0)
    model = transformers.BertForPreTraining(transformers.BertConfig(**SIZES))
    for p in model.parameters():  # theirs are nearly 0, and biases and norms say nothing
        torch.nn.init.normal_(p, std=0.3)
    return model.double().eval()


def load(theirs, **changed):
    return from_hugging_face(
        theirs.config.to_dict() | changed, theirs.state_dict(), param_dtype=jnp.float64
    )


@pytest.mark.parametrize("activation", ["gelu_new", "gelu"])
def test_states_and_heads(x64, torch, theirs, activation):
    draw = np.random.default_rng(0)
    tokens, types = draw.integers(1, 53, (2, 11)), draw.integers(0, 2, (2, 11))
    tokens[1, 8:] = 0
    masked = np.array([[1, 4, 10], [7, 0, 3]])
    theirs.config.hidden_act = activation
    peer = type(theirs)(theirs.config).double().eval()
    model, variables = load(theirs)
    carried = to_hugging_face(theirs.config.to_dict(), variables)
    assert_same(carried, theirs.state_dict())
    peer.load_state_dict({name: torch.from_numpy(x) for name, x in carried.items()})
    with torch.no_grad():
        given = {
            "input_ids": torch.from_numpy(tokens),
            "token_type_ids": torch.from_numpy(types),
            "attention_mask": torch.from_numpy((tokens != 0).astype(int)),
        }
        want = peer(**given)
        states, pooled = (x.numpy() for x in peer.bert(**given).to_tuple())
    got = apply(model, variables, tokens, types, masked=masked)
    logits = np.take_along_axis(want.prediction_logits.numpy(), masked[..., None], axis=1)
    np.testing.assert_allclose(got.masked.logits(), logits, atol=1e-9)
    # In their labels 0 is a segment that follows.
    np.testing.assert_allclose(got.next, want.seq_relationship_logits.numpy()[:, ::-1], atol=1e-9)
    ours = apply(Bert(model.config), {"params": variables["params"]["bert"]}, tokens, types)
    real = (tokens != 0)[..., None]
    np.testing.assert_allclose(np.where(real, ours[0], 0), np.where(real, states, 0), atol=1e-9)
    np.testing.assert_allclose(ours[1], pooled, atol=1e-9)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"is_decoder": True}, "what is_decoder=False does; got True"),
        ({"tie_word_embeddings": False}, "what tie_word_embeddings=True does; got False"),
        ({"pad_token_id": 1}, "what pad_token_id=0 does; got 1"),
        ({"num_hidden_layers": 2}, r"weights must be of this configuration; got \["),
        ({"vocab_size": 54}, "got 'embeddings.word_embeddings.weight'"),
    ],
)
def test_other_configurations_are_refused(theirs, changed, said):
    with pytest.raises(ValueError, match=said):
        load(theirs, **changed)


def test_files_with_the_old_names_of_layer_norm_are_read(theirs):
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    state, renamed = theirs.state_dict(), {}
    for name, x in state.items():
        ending = ".".join(name.split(".")[-2:])
        renamed[name.removesuffix(ending) + old.get(ending, ending)] = x
    assert len(renamed.keys() - state.keys()) >= 6
    variables, same = (from_hugging_face(theirs.config.to_dict(), x)[1] for x in (renamed, state))
    jax.tree.map(np.testing.assert_array_equal, variables, same)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_heads", 1), ("norm_inputs", False), ("attention_bias", False), ("pre_norm", True),
        ("positions", "sinusoid"), ("scale_embeddings", True), ("window", 3), ("key_width", 5),
    ],
)  # fmt: skip
def test_another_function_is_not_theirs(theirs, field, value):
    config, state = theirs.config.to_dict(), theirs.state_dict()
    with pytest.raises(ValueError, match=f"{field} says what is computed, and theirs is .*; got"):
        from_hugging_face(config, state, **{field: value})


def test_what_leaves_the_function_as_it_is_may_change(theirs):
    config, state = theirs.config.to_dict(), theirs.state_dict()
    changed = {"dropout_rate": 0.3, "dtype": jnp.bfloat16, "remat": True, "num_heads": 3}
    model, _ = from_hugging_face(config | {"num_attention_heads": 3}, state, **changed)
    assert (model.config.dropout_rate, model.config.remat) == (0.3, True)
