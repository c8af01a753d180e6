"""Published tables beside ours, cell by cell: paper, ours, verdict.

    launch/local tables --scale=cpu --multi30k=FOLDER --only=luong4
    launch/local tables --scale=cpu --text=FILE --only=bert8
    launch/local tables --scale=paper --only=vaswani3
    launch/local tables --scale=cpu --only=lra2_speed,lra2_memory
    launch/local tables --claims

A number of ours was always made here, by code of the revision beside it. Each row is a run of an
experiment, such as `translate`, once for each seed, in the folder `runs`, with small models at
scale "cpu", larger ones at "gpu" and the paper's at "paper"; a run may begin with the models of
another. Times and memory are of a run of `compare_lengths` for a whole table. The verdict follows
from a rule that was written down before the run (`verdicts.py`); `mapping` says what each cell is.
A run that was cut short goes on with `--resume`, in the middle of a training too, and one that is
in `runs` already is not made again. In a job array of SLURM each job does its part of the cells, as
with --part=I/N. With --claims nothing is run: what the papers are cited for,
`published/claims.toml`, is judged by the rows that are kept. Numbers that need no training, such as
those of parameters, are counted by tests/papers: `experiments/results/tables/report.md`.
"""

SHARED_BY = "jobs"
