"""Every mechanism, forward and gradient, compiles for a TPU and a GPU that are not here.

The compilers are those of the extras `tpu` and `gpu-compile`; what lacks one is skipped, and
test_lowering stops at what the compiler would be given. A process for each target: an environment
made for compiling only is not for other tests.
"""

import json
import os
import sys

import pytest

from attnlab.bench import targets, topology
from attnlab.runs.errors import Invalid
from tests.mechanism_cases import BY_NAME, MECHANISMS
from tests.several import run_python

TARGETS = ("v5e", "h100")
# Compiling is slow: dense code only repeats what test_lowering lowers, and `lsh` grows below.
COMPILED = [m.name for m in MECHANISMS if not m.name.endswith("-dense") and m.name != "lsh-sorted"]
KERNELS = ("dot kernel", "lsh kernel")
GROWING = ("multi_head", "lsh", "additive kernel")
LENGTHS = (4096, 16384)
LARGEST_GROWTH = 4.4  # at 4× the length; a little is left for what does not grow


@pytest.fixture(scope="module", params=TARGETS)
def found(request):
    """{"compiles": {name: "" or why not}, "growth": {name: memory at 4× the length / memory}}."""
    target = targets.parse(request.param)
    try:
        topology.require_compiler(target)
    except Invalid as error:
        pytest.skip(str(error))
    environment = os.environ | topology.environment()
    printed = run_python("-m", "tests.test_compiling", target.name, env=environment)
    return json.loads(printed.splitlines()[-1])


@pytest.mark.parametrize("name", [*COMPILED, *KERNELS])
def test_compiles(found, name):
    assert found["compiles"][name] == ""


@pytest.mark.parametrize("name", GROWING)
def test_memory_is_linear(found, name):
    assert 1 < found["growth"][name] <= LARGEST_GROWTH


if __name__ == "__main__":
    import functools
    from concurrent.futures import ThreadPoolExecutor

    import jax
    import jax.numpy as jnp
    from jax.sharding import SingleDeviceSharding

    import attnlab
    from attnlab import masks, scores
    from attnlab.devices import platforms
    from attnlab.ops.routes import LSH

    target = targets.parse(sys.argv[1])
    placed = SingleDeviceSharding(topology.devices(target)[0])

    def compiled(apply, arrays):
        """The context and its gradients, as one program of the target."""

        def everything(arrays):
            context, pull_back = jax.vjp(apply, arrays)
            return context, pull_back(jnp.ones_like(context))

        shapes = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=placed), arrays
        )
        with platforms.compiling_for(target.platform):
            return jax.jit(everything).lower(shapes).compile()

    def of_mechanism(mechanism):
        arrays = mechanism.arrays(dtype=jnp.bfloat16)
        mask = mechanism.mask_of(causal=mechanism.causal)
        return compiled(lambda arrays: mechanism.apply(arrays, mask), arrays)

    def of_length(name, length):
        """Eight heads in bfloat16; the exact ones blockwise or by a kernel."""
        # 1/√128 is no power of 2: the kernel then has a scale of its own.
        width = 128 if name == "dot kernel" else 64
        x = jax.ShapeDtypeStruct((1, length, 8, width), jnp.bfloat16)
        way = "pallas" if name.endswith("kernel") else None
        exact = {"mask": masks.Causal(), "implementation": way or "blockwise"}
        arrays = {"q": x, "k": x, "v": x}
        match name.split()[0]:
            case "multi_head" | "dot":
                apply = functools.partial(attnlab.dot_product_attention, **exact)
            case "additive":
                arrays["w"] = jax.ShapeDtypeStruct((64,), jnp.bfloat16)
                apply = functools.partial(attnlab.additive_attention, **exact)
            case "lsh":
                route = LSH(4, chunk_size=64, implementation=way)

                def apply(q, k, v):
                    return route(scores.Dot(), q, q, v, mask=masks.Causal())

        return compiled(lambda arrays: apply(**arrays), arrays)

    def why_not(compile_it, *arguments):
        try:
            compile_it(*arguments)
        except Exception as error:  # any of the compiler's is the answer
            return f"{type(error).__name__}: {error}"[:500]
        return ""

    def bytes_of(name, length):
        found = of_length(name, length).memory_analysis()
        return found.argument_size_in_bytes + found.output_size_in_bytes + found.temp_size_in_bytes

    with ThreadPoolExecutor(2) as pool:  # compiling leaves Python to others
        reasons = {name: pool.submit(why_not, of_mechanism, BY_NAME[name]) for name in COMPILED}
        reasons |= {name: pool.submit(why_not, of_length, name, LENGTHS[0]) for name in KERNELS}
        sizes = {(g, n): pool.submit(bytes_of, g, n) for g in GROWING for n in LENGTHS}
        short, long = LENGTHS
        growth = {g: sizes[g, long].result() / sizes[g, short].result() for g in GROWING}
        compiles = {name: reason.result() for name, reason in reasons.items()}
    print(json.dumps({"compiles": compiles, "growth": growth}))
