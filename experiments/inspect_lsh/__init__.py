"""LSH attention looked into: what its hash rounds see, and where its time goes.

    launch/local inspect_lsh
    launch/local inspect_lsh --parts=quality --input=my.txt --train_steps=1000 --rounds=1,2,4,8,16
    launch/local inspect_lsh --parts=profile --lengths=4096,16384 --passes=forward --num_hashes=8
    launch/local inspect_lsh --resume=results/inspect_lsh-20261120-144900

quality: a small causal model is trained for a moment on the bytes of a text. Then it reads bytes
that it was not trained on, the queries, keys and values of its layers are hashed, and LSH attention
is compared with full attention. The first values of all lists together are the base; every other
value is tried alone in place of the base's, each over --rounds.

profile: the compiled program of `lsh_attention`, hashing included, runs on the bytes of the text
under JAX's profiler, and the trace says which share of the time each stage takes: hash, sort,
gather, attend, merge. What lies outside these named scopes is "other". Instructions run side by
side, so each moment is divided equally between those in flight.

Other attention, a user's own too, is measured beside LSH by the pairs that it sees: --beside.

A fresh folder gets results.jsonl, report.md, the figures quality, pairs, buckets and shares, and
the model. Ctrl-C keeps what is done; --resume measures what is missing, if anything is,
and writes report and figures again. The defaults take five minutes on two cores.
"""
