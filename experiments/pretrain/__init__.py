"""BERT is pre-trained on a text: masked tokens, and whether one segment follows another.

    launch/local pretrain --input=tinyshakespeare.txt
    launch/local pretrain --input=TEXT --objective=mlm_nsp,mlm --seeds=0,1,2
    launch/local pretrain --input=TEXT --masking=80/10/10,100/0/0,0/20/80
    launch/local pretrain --input=TEXT --attention=lsh-4 --length=512
    launch/local pretrain --input=TEXT --init_from=RUN --length=512    # a RUN with --max_length=512
    launch/local pretrain --resume=results/pretrain-20261122-101500

Blank lines of the text separate documents, whose lines are sentences; the last documents are held
out. Every objective is trained with every masking and every seed, by the released optimizer, and
tested on the same masks. A fresh folder gets results.jsonl, report.md with the shares that were
masked, the curve, and a folder for each training, which `finetune --init_from=RUN` reads. SIGTERM
and Ctrl-C save; --resume=FOLDER goes on, bit for bit.
"""

SHARED_BY = "processes"
