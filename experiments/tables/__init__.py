"""Published tables beside ours, cell by cell: paper, ours, verdict.

    python -m experiments.tables
    python -m experiments.tables --only=vaswani3_parameters,britz4_parameters

A number of ours was always made here, by code of the revision beside it. A cell has a scale:
"exact" is counted, without training. The verdict follows from a rule that was written down before
the run (`verdicts.py`); `mapping.py` says what each cell is. A run that was cut short goes on with
`--resume`, cell by cell.
"""
