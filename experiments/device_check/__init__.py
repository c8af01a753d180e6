"""One command for a machine with an accelerator: is attnlab right there, and how fast?

    python -m experiments.device_check
    python -m experiments.device_check --resume=results/device_check-20261120-120000
    python -m experiments.device_check --parts=correctness --mechanisms=scaled_dot,lsh
    python -m experiments.device_check --allow_cpu --lengths=256,512 --tokens=1024 --minutes=2

Checks every mechanism and implementation on the device, context and gradients, against attention in
float64 NumPy, and times attnlab and the platform's own flash attention over length, in turns, and
says which targets are met. All within --minutes and the most important first: the checks of what
may break there (defaults and kernels in bfloat16), the timing, all other checks. Each program is in
a worker process whose death is a row; one that fails on the device, or hangs, is replaced. A fresh
folder gets results.jsonl with a line for each check and each timed program, report.md and figures
of time and memory as SVG and PNG; what is worth keeping goes to
experiments/results/DEVICE/device_check. Ctrl-C keeps what is done and writes the report; --resume
does what is missing. The exit status is 0 only where all is done and no check failed. It needs jax,
flax, numpy, absl and matplotlib only, no network, and no installation of this project.
"""
