"""The frame of experiments that train.

| file | what it holds |
| --- | --- |
| `study` | what a study says of itself: cells, trainings, scores, tables |
| `run` | a run of it: trainings that go on where they ended, rows, report |
| `plan` | how long trainings would take here; what a step needs on an absent accelerator |
| `command` | its command line |
| `frontier` | figure of the scores against what a model costs |
"""
