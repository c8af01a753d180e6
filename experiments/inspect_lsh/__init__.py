"""LSH attention looked into: what its hash rounds see.

    launch/local inspect_lsh
    launch/local inspect_lsh --input=my.txt --train_steps=1000 --rounds=1,2,4,8,16
    launch/local inspect_lsh --resume=results/inspect_lsh-20261120-144900

A small causal model is trained for a moment on the bytes of a text. Then it reads bytes that it was
not trained on, the queries, keys and values of its layers are hashed, and LSH attention is compared
with full attention. The first values of all lists together are the base; every other value is tried
alone in place of the base's, each over --rounds.

Other attention, a user's own too, is measured beside LSH by the pairs that it sees: --beside.

A fresh folder gets results.jsonl, report.md, the figures quality and pairs, and the model.
Ctrl-C keeps what is done; --resume measures what is missing, if anything is, and writes report and
figures again. The defaults take five minutes on two cores.
"""
