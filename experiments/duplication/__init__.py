"""The price of hashing on a task that only attention can solve: Table 2 of the Reformer.

    launch/local duplication
    launch/local duplication --nogrid --words=31 --seeds=0
    launch/local duplication --preset=longer
    launch/local duplication --resume=results/duplication-20261122-070000

A language model of one layer learns to write a random word again: `0w0w`, where the second half can
be predicted from the first alone. It is trained with attention over all pairs and with LSH
attention of 4, 2 and 1 hash rounds, and each of these models is evaluated with all pairs and with
8, 4, 2 and 1 rounds; loss and accuracy are of the second half. The paper's numbers stand beside
them in `tables --only=reformer2`. With --grid what the literature leaves open is varied as well:
the scale of the logits, the number of buckets, the bucket mask, how a pair counts that several
rounds show, what "full" attention is, and how the learned positions begin. A fresh folder gets
results.jsonl, report.md, figures as SVG, and checkpoints and metrics.jsonl of each training.
SIGTERM and Ctrl-C save and report what is done; --resume=FOLDER goes on, bit for bit.

Presets: cpu (words of 31 symbols with the grid), longer (words of 127), gpu (words of 511), paper
(what the paper's text says), code (the configuration that its authors released in 2019).
"""
