"""The frame of experiments that train.

| file | what it holds |
| --- | --- |
| `study` | models × settings × seeds: cells, identity, rows, tables, report |
| `plan` | how long trainings would take, and what a step needs, here or on an absent accelerator |
"""
