"""Where a measurement came from: the machine, its free memory, the input."""

from collections.abc import Sequence
from typing import Any

import jax

from attnlab.bench import inputs, memory
from attnlab.runs import provenance


def describe(text: inputs.Text, packages: Sequence[str] = ()) -> dict[str, Any]:
    """What to know of this process to read its numbers. Initializes JAX's devices.

    Args:
      text: text that the inputs are made of.
      packages: names of other packages whose versions matter.
    """
    return provenance.describe(packages) | {
        "devices": jax.local_device_count(),
        "available_bytes": memory.available(jax.local_devices()[0]),
        "input": {"name": text.name, "bytes": int(text.data.size), "sha256": text.digest},
    }
