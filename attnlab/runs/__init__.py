"""What every run leaves on disk, whatever it did: a fresh folder, figures, where it came from.

| file | what it holds |
| --- | --- |
| `errors` | `Invalid`: a setting that cannot be used, one line for the user |
| `folders` | a stamped folder that nothing was in before |
| `command_line` | the flags of an experiment, from the dataclass of its settings |
| `figure_files` | how every figure looks, and how it is written |
| `palette` | colors and markers of mechanisms and models |
| `interrupts` | Ctrl-C and SIGTERM, none of which is lost |
| `markdown` | tables in Markdown |
| `published` | papers' tables, read from CSV |
| `provenance` | device, versions and git revision of a run |
"""
