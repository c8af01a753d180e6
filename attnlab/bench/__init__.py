"""Memory and speed of attention mechanisms over sequence length.

| file | what it holds |
| --- | --- |
| `case` | `Case`, what is measured; `Result`, what came out: one JSON line each |
| `inputs` | bytes of a text -> embedding with positions -> separate query, key and value streams |
| `mechanisms` | a name on the command line -> a Flax module, or the bare function |
| `programs` | a case -> a jitted or pmapped program, compiled from shapes alone |
| `memory` | what a program needs, what the machine has, what a run was seen to take |
| `measure` | one case: compile, check that it fits, run, time |
| `worker`, `runner` | cases in a process of their own, so that a killed one becomes a row |
| `folder` | the stamped folder of a run; what a resumed run still has to do |
| `trends` | fitted exponents, crossovers, the largest length that fits |
| `report`, `figures` | Markdown, CSV, SVG and PNG as functions of the rows |
| `published` | papers' measurements, and ours beside them |
| `peers*` | the same work side by side with other implementations |
| `profile*` | where the time of LSH attention goes, from a trace of the real program |
| `targets`, `topology`, `deviceless*` | programs compiled for accelerators that are not there |
| `sharding`, `training_programs` | a case split over a slice; whole training steps |
| `oracle`, `oracle_lsh` | attention in float64 NumPy, from the papers; for `device*`, the tests |
| `device_*` | correctness and speed on a real device: `experiments.device_check` |
| `hash_quality*` | what hashing finds of full attention, on activations of a trained model |
"""
