"""Which of the kernels an accelerator runs."""

from __future__ import annotations

from types import ModuleType

from attnlab.platforms import Platform

__all__ = ["kernels_for", "why_not_on"]


def why_not_on(platform: Platform, interpret: bool) -> str | None:
    """Why there is no kernel for this platform; None where there is."""
    if platform.name == "tpu" or (platform.name == "cpu" and interpret):
        return None
    if platform.name != "cuda":
        return f"is for TPU and NVIDIA GPU, not for {platform.name}"
    if platform.capability is None or platform.capability[0] != 9:
        return f"is for NVIDIA's compute capability 9 (H100, H200), not for {platform.kind}"
    return None


def kernels_for(platform: Platform) -> ModuleType:
    """`range_gpu`, or `range_tpu`; imported here, so that `import attnlab` does without Pallas."""
    if platform.name == "cuda":
        from attnlab.ops.kernels import range_gpu

        return range_gpu
    from attnlab.ops.kernels import range_tpu

    return range_tpu
