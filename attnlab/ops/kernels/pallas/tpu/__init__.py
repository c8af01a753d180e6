"""The kernels for TPU, in Pallas for Mosaic."""

from attnlab.ops.kernels.pallas.tpu.backward import backward
from attnlab.ops.kernels.pallas.tpu.forward import forward, refusal

__all__ = ["backward", "forward", "refusal"]
