"""Tests for the accelerator that is there: each kernel against the plain version in float64.

    launch/local test --device
    python -m pytest tests/device                     # nothing installed but jax, flax and pytest
    python -m pytest tests/device -k "pallas and bfloat16"
    python -m pytest tests/device --allow_cpu         # small, kernels interpreted: tries the tests

Every implementation (cuDNN, splash, tokamax, the Pallas kernels, blockwise, dense) that accepts a
scenario is checked in bfloat16 and float32, context and gradients, in the mean and in the worst
row, by the judge of `attnlab.testing`; LSH on given buckets; the hash; a mesh of all devices; and
of the contract list (`tests.mechanism_cases`) what has no kernel. The truth is the plain version's
in float64 on the CPU. What may break on a device comes first: the defaults and kernels in bfloat16.

The checks run in a process of their own, which is replaced where it died, hung or failed on the
device, so that one kernel takes no other down. Each check's ratios are a line of JSON in
results/device-DATE-TIME.jsonl (--device_report names another file), behind a line on the machine;
what is worth keeping is committed under experiments/results/DEVICE. Without an accelerator the
tests end with one line and status 2.

| file | what it holds |
| --- | --- |
| `scenarios` | what is checked, in which order |
| `problems` | arrays, their truth in float64, the function of an implementation |
| `worker`, `isolation` | the process with the device; its replacement |
"""
