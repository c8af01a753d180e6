"""Measuring one program of attention: its memory and its time, here or for an absent device.

| file | what it holds |
| --- | --- |
| `case` | `Case`, what is measured; `Result`, what came out |
| `inputs` | bytes of a text -> embedding with positions -> separate query, key and value streams |
| `mechanisms` | a name on the command line -> a Flax module, or the bare function |
| `peers` | other people's attention as mechanisms |
| `programs` | a case -> a jitted or pmapped program, compiled from shapes alone |
| `sharding`, `model_programs` | a case split over a slice; training steps, and searches |
| `memory` | what a program needs, what the machine has, what a run was seen to take |
| `measure` | one case: compile, check that it fits, run, time |
| `deviceless`, `targets`, `topology` | the same compiled for an accelerator that is not there |
| `workers` | programs in a process of their own, so that a killed one is a row |
| `environment` | where a measurement came from |
| `operations` | what a traced program computes |
| `jaxprs` | what is inside of a traced operation |
| `work` | the operations of a case |
| `hlo`, `network` | the text of a compiled program; what it sends over the network |
| `roofline`, `peaks` | what a machine can do at most, and the least time of so many operations |
| `trends` | fitted exponents, crossovers, the largest length that fits |
| `tables` | Markdown over length, time or memory |
| `panels` | log-log figures over length, with a legend for each row of panels |
"""
