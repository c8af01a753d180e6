"""One command for a machine with an accelerator: is attnlab right there, and how fast?

    launch/local device_check
    launch/local device_check --resume=results/device_check-20261120-120000
    launch/local device_check --parts=correctness --mechanisms=scaled_dot,lsh
    launch/local device_check --allow_cpu --lengths=256,512 --tokens=1024 --minutes=2

Checks every mechanism and implementation on the device, context and gradients, against attention in
float64 NumPy; times attnlab and the platform's own flash attention over length, in turns; and says
which targets are met. All of this takes at most --minutes, the most important first: checks of what
may break on this device (defaults and kernels in bfloat16), then the timing, then all other checks.
Where there are several devices, it also checks a mesh of them; their times over their number are
`compare_lengths --devices=1,2,4`.
The programs run in a worker process: one that dies, hangs or fails on the device is replaced, and
the row of its program says so. A fresh folder gets results.jsonl with a line for each check and
each timed program, report.md and figures of time and memory as SVG and PNG; results that are worth
keeping are committed as experiments/results/DEVICE/device_check. Ctrl-C keeps what is done and
writes the report; --resume does what is missing. The exit status is 0 only if everything is done
and no check failed. It needs only jax, flax, numpy, absl and matplotlib, no network, and no
installation of this project.
"""

SHARED_BY = "processes"
