"""Memory and speed of attention mechanisms over sequence length, on real text.

    python -m experiments.compare_lengths
    python -m experiments.compare_lengths --mechanisms=multi_head,lsh --lengths=1k,4k,16k
    python -m experiments.compare_lengths --mechanisms=multi_head:dense,additive,lsh
    python -m experiments.compare_lengths --implementation=dense,blockwise --mechanisms=concat
    python -m experiments.compare_lengths --resume=results/compare_lengths-20261120-101500
    python -m experiments.compare_lengths --target=v5e,h100 --dtype=bfloat16
    python -m experiments.compare_lengths --target=v5e:2x4 --shard=sequence --mechanisms=multi_head
    python -m experiments.compare_lengths --target=v5e-8 --shard=batch --batch=8 --program=bert

Each mechanism is the same jitted Flax module, with as many heads and the same projections, run on
the bytes of a text, forward and forward + backward, length by length; two of them also as in the
textbook (dense), until that no longer fits or would be too slow. A fresh folder gets results.jsonl
(every repetition), results.csv, report.md and two figures, memory and time, as SVG and PNG; the
report also sets LSH beside published tables. Ctrl-C keeps what is done and still writes the report.
The defaults take four to six minutes on two quiet cores, and at most 8 GiB.

With --target nothing runs: each program is compiled for accelerators that are not there, and the
report says what memory it would need on them, up to which length it fits, and no times. --program
compiles a whole training step instead (Adam, float32 parameters).
"""
