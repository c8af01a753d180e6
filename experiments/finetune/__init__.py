r"""A pre-trained BERT learns a task: classes of sentences and pairs, tags, answers in a text.

    launch/local finetune --init_from=RUN --train_file=train.tsv --dev_file=dev.tsv
    launch/local finetune --init_from=RUN --task=tag --train_file=train.conll \
        --dev_file=dev.conll --test_file=test.conll
    launch/local finetune --init_from=RUN --task=span --train_file=train.json \
        --dev_file=dev.json
    launch/local finetune --init_from=RUN --made=spelling --input=tinyshakespeare.txt
    launch/local finetune --resume=results/finetune-20261122-101500

RUN is the folder of a run of `pretrain`, or of one of its trainings. Each of its models is trained
on the task as a whole (`tuned`), or only the classifier on its states (`frozen`), beside a model of
the same sizes that was not pre-trained (`scratch`); each with every seed. Files have the shapes of
GLUE (TSV with a header, or JSON lines), CoNLL (a word and its tag a line, blank lines between
sentences; entities in IOB, IOBES or BILOU) and SQuAD (JSON). --made makes a task of any text
instead. A fresh folder gets results.jsonl, report.md and a figure. SIGTERM and Ctrl-C save;
--resume=FOLDER goes on.
"""
