"""The frame of experiments that train.

| file | what it holds |
| --- | --- |
| `study` | models × settings × seeds: cells, identity, rows, tables, report |
| `plan` | how long trainings would take here; what a step needs on an absent accelerator |
"""
