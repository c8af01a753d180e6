"""Kills a training at random moments, kill −9, and checks that nothing came of it.

    python -m experiments.survive_kills
    python -m experiments.survive_kills --kills=50 --seed=3 --model=transformer

The date task of `translate` is trained twice with a checkpoint every few steps: once undisturbed,
once killed again and again, while it starts, steps, validates or writes a checkpoint, and each time
resumed. The two curves and the last checkpoints must be the same, bit for bit. A fresh folder gets
both runs. Twenty kills take six minutes on two cores.
"""
