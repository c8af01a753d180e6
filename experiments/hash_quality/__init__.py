"""How many hash rounds LSH attention needs: what it sees of full attention, on real activations.

    launch/local hash_quality
    launch/local hash_quality --input=shakespeare.txt --train_steps=1000
    launch/local hash_quality --length=8192 --rounds=1,4,16 --chunk_sizes=64,128
    launch/local hash_quality --resume=results/hash_quality-20261120-144900

A small causal model is trained for a moment on the bytes of a text. Then it reads bytes that it was
not trained on, the queries, keys and values of its layers are hashed, and LSH attention is compared
with full attention: the share of the attention mass that it sees, the recall of the largest
weights, the error of its context, the sizes of the buckets. The first values of all lists together
are the base; every other value is tried alone in place of the base's, each over --rounds. A fresh
folder gets results.jsonl, report.md, two figures as SVG and PNG, and the model. Ctrl-C keeps what
is done; --resume measures what is missing, if anything is, and writes report and figures again.
The defaults take three minutes on two cores.
"""
