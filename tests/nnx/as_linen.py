"""NNX modules as the tests of Linen's call them: variables in, outputs and variables out."""

import dataclasses

from flax import nnx

import attnlab.nnx
from attnlab.nnx import SampledChoice


@dataclasses.dataclass(frozen=True)
class AsLinen:
    """The NNX module of the same name and fields as a Linen module, behind the calls of Linen's."""

    linen: object

    def __getattr__(self, name):
        return getattr(self.linen, name)

    def clone(self, **changed):
        return AsLinen(self.linen.clone(**changed))

    def make(self, query, key=None, value=None, *, rngs):
        """The NNX module for inputs of these widths; random numbers come with each call."""
        fields = {
            field.name: getattr(self.linen, field.name)
            for field in dataclasses.fields(self.linen)
            if field.init and field.name not in ("parent", "name")
        }
        widths = {"in_features": query.shape[-1]}
        key = query if key is None else key
        if key.shape[-1] != query.shape[-1]:
            widths["in_kv_features"] = key.shape[-1]
        if value is not None and value.shape[-1] != key.shape[-1] and "num_heads" in fields:
            widths["in_value_features"] = value.shape[-1]
        kind = getattr(attnlab.nnx, type(self.linen).__name__)
        return kind(**fields, **widths, keep_rngs=False, rngs=rngs)

    def init_with_output(self, rngs, *inputs, **options):
        streams = rngs if isinstance(rngs, dict) else {"default": rngs}
        module = self.make(*inputs, rngs=nnx.Rngs(**streams))
        if options.get("decode"):
            module.init_cache(inputs[0].shape, cross=len(inputs) > 1)
        variables = attnlab.nnx.from_nnx(module)
        options = {name: x for name, x in options.items() if name != "decode"}
        return module(*inputs, rngs=nnx.Rngs(**streams), **options), variables

    def init(self, rngs, *inputs, **options):
        return self.init_with_output(rngs, *inputs, **options)[1]

    def apply(self, variables, *inputs, rngs=None, mutable=False, **options):
        module = nnx.eval_shape(lambda: self.make(*inputs, rngs=nnx.Rngs(0)))
        nnx.update(module, attnlab.nnx.to_nnx({"params": variables.get("params", {})}))
        for collection, tree in variables.items():
            if collection != "params":
                for name, x in tree.items():
                    setattr(module, name, nnx.variable_type_from_name(collection)(x))
        sows = bool(mutable) and "intermediates" in mutable
        captured = SampledChoice if mutable and "choice" in mutable else nnx.Intermediate

        @nnx.capture(captured)
        def call(module):
            streams = nnx.Rngs(**rngs) if rngs else None
            return module(*inputs, rngs=streams, sow_weights=sows, **options)

        output, sown = call(module)
        if not mutable:
            return output
        after = attnlab.nnx.from_nnx(module) | attnlab.nnx.from_nnx(sown)
        return output, {name: after[name] for name in mutable if name in after}
