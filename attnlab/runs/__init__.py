"""A run: its flags, its folder, its loop; what it leaves on disk, and where that came from.

An experiment is a dataclass of settings (`Flags`), a function that measures one item, and a report
over the rows; `command_line.run` and `loop.run` are the rest.

| file | what it holds |
| --- | --- |
| `errors` | `Invalid` a setting, `Stopped` a run that cannot go on, `Lost` an item of one |
| `flags` | settings as a dataclass whose fields are flags |
| `command_line` | from the command line to settings and a folder; the exit status |
| `folder` | a stamped folder that nothing was in before, or that of an earlier run |
| `rows` | rows on disk as they come, each with when and where it was made |
| `loop` | does what is missing, keeps each row, reports however it ends |
| `remaining` | how long the rest of it takes |
| `clusters` | which processes a run has: SLURM, TPU slices, GKE, SkyPilot, or the flags |
| `processes` | several processes of one run: they agree, and come down together |
| `hosts` | an experiment of one host's devices, on every host |
| `interrupts` | Ctrl-C and SIGTERM, none of which is lost |
| `allocator` | what the C library does with memory that is freed |
| `provenance` | device, versions and git revision; the table of them in each report |
| `report` | what every report has: rows so far, what is missing, where it is from |
| `markdown`, `units` | tables in Markdown; seconds and bytes for a reader |
| `intervals` | how far the mean of a few seeds may be off |
| `figure_files`, `palette` | how every figure looks, and how it is written |
| `published` | papers' tables, read from CSV |
"""
