"""Which tiles a kernel takes."""

import pytest

from attnlab import Pallas
from attnlab.devices.platforms import Platform
from attnlab.ops.kernels.pallas import block_sizes

H200, V5E = Platform("cuda", "NVIDIA H200", (9, 0)), Platform("tpu", "TPU v5 lite")


@pytest.mark.parametrize(
    ("platform", "reach", "expected"),
    [
        # LSH with chunks of 64: its causal window, that of both sides, and two chunks.
        (H200, (64, 0), (64, 64)),
        (H200, (64, 64), (64, 64)),
        (H200, (127, 0), (64, 64)),
        (V5E, (64, 64), (128, 128)),
        (H200, (500, 0), (128, 64)),
        (V5E, (600, 0), (512, 512)),
        (H200, (None, 0), (128, 64)),
        (V5E, (None, None), (512, 512)),
    ],
)
def test_a_narrow_band_has_small_tiles(platform, reach, expected):
    assert block_sizes(Pallas(), platform, "dot", reach) == expected
    assert block_sizes(Pallas(256, 32), platform, "dot", reach) == (256, 32)
