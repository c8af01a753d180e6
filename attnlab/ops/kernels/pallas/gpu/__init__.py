"""The kernels for NVIDIA GPUs of compute capability 9 (Hopper), in Pallas for Mosaic GPU."""

from attnlab.ops.kernels.pallas.gpu.backward import backward
from attnlab.ops.kernels.pallas.gpu.forward import forward, refusal

__all__ = ["backward", "forward", "refusal"]
