"""Kills a training at random moments (kill −9) and checks that its results stay the same.

    launch/local survive_kills
    launch/local survive_kills --kills=50 --seed=3 --model=transformer
    launch/local survive_kills --processes=2

A model is trained twice on the dates of `translate`, with a checkpoint every few steps. One
training is undisturbed; the other one is killed again and again, while it starts, steps, validates
or writes a checkpoint, and is resumed each time. The two curves and the last checkpoints must be
the same, bit for bit. A fresh folder gets both runs. Twenty kills take six minutes on two cores.

With several processes, kill −9 and SIGTERM strike one of them by turns, once they have found each
other, and the others must end within a minute.
"""
