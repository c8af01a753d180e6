"""Memory and speed of attention mechanisms over sequence length, on real text.

    launch/local compare_lengths
    launch/local compare_lengths --mechanisms=exact,lsh-4 --lengths=1k,4k,16k
    launch/local compare_lengths --mechanisms=exact:dense,additive,lsh-8
    launch/local compare_lengths --implementation=dense,blockwise --mechanisms=concat
    launch/local compare_lengths --resume=results/compare_lengths-20261120-101500
    launch/local compare_lengths --target=v5e,h100 --dtype=bfloat16
    launch/local compare_lengths --target=v5e:2x4 --shard=sequence --mechanisms=exact
    launch/local compare_lengths --target=v5e-8 --shard=batch --batch=8 --program=bert
    launch/local compare_lengths --target=h100-64 --shard=state --batch=64 --program=bert

Each mechanism is a jitted Flax module; all have the same number of heads and the same projections.
They run on the bytes of a text, forward and forward + backward, length by length. Multi-head and
additive attention are also computed as in a textbook (dense), until that no longer fits or would be
too slow. The operations of each program are counted and set beside the machine's peaks, which are
measured at the end: the share that a mechanism reaches. A fresh folder gets results.jsonl (every
repetition), results.csv, report.md and two figures, memory and time, all but the first after each
length; Ctrl-C keeps what is done and still writes the report. Beside other work times say little:
the report begins with that. The defaults take four to six minutes on two quiet cores, and at most
8 GiB.

With --target nothing runs, so there are no times: each program is compiled for accelerators that
this machine does not have, and the report says how much memory it would need there, up to which
length it would fit, what each device of a slice sends to the others, and how long it would take at
least. --program compiles a whole training step instead (Adam, float32 parameters), of several
--batch at one length too. Without --target the programs language_model and translate run here, and
translate with --passes=greedy,beam also searches.
"""

SHARED_BY = "processes"
