"""Flax Linen modules: parameters and naming around the functions of `attnlab.ops`.

They follow Flax: `dtype`, `param_dtype`, `precision`, `kernel_init`, `deterministic`, rng streams
"dropout", "hash" and, with `routes.Hard()`, "sample", `logical_axes=True` for partitioning
metadata. Weights come with `return_weights=True`, or sown where "intermediates" is mutable; what
REINFORCE needs of a sample is sown where "choice" is. `MultiHeadAttention` and
`LSHSelfAttention` decode with a cache (`decode=True`), equal to the full forward:

>>> import attnlab, jax, jax.numpy as jnp
>>> from attnlab import routes
>>> x = jnp.ones((2, 100, 64))
>>> model = attnlab.LSHSelfAttention(num_heads=8, route=routes.LSH(chunk_size=32), rotary=True)
>>> variables = model.init(jax.random.key(0), x, decode=True)  # a cache as long as x
>>> step = jax.jit(lambda v, x: model.apply(v, x, decode=True, mutable=["cache"]))
>>> y, cache = step(variables, x[:, :10])  # a prompt, in parallel
>>> y, cache = step({**variables, **cache}, x[:, 10:11])  # a token: O(rounds · chunk_size)
>>> y.shape
(2, 1, 64)

The mask says what is causal; `LSHSelfAttention` also takes `causal=`, by default True, because the
Reformer is a language model. `attnlab.ops` lists all defaults of `causal=`.

What a distance adds to the logits is a module as well, `position_bias=`: `AlibiBias()`, or a
learned `RelativePositionBias()`, as T5 has it. In every layer it has parameters of its own; one for
all layers is called once, and given to each as `bias=`.

>>> bias, table = attnlab.RelativePositionBias().init_with_output(jax.random.key(0), 8, 100, 100)
>>> module = attnlab.MultiHeadAttention(num_heads=8)
>>> y, variables = module.init_with_output(jax.random.key(1), x, bias=bias)  # no T × S array

`num_hashes`, `num_buckets` and the other fields of the route belong to no parameter, so evaluation
may use others. `attnlab.hash_quality` says what share of full attention the rounds see.
"""
