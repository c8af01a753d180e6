"""Is LSH attention worth it? Bits per byte against time and memory, of language models of any text.

    launch/local language_model --input=tinyshakespeare.txt
    launch/local language_model --input=enwik8 --preset=gpu
    launch/local language_model --input=TEXT --models=exact,lsh-4 --lengths=1k --seeds=0
    launch/local language_model --tasks=copy --copy_models=lsh-4,window-128
    launch/local language_model --resume=results/language_model-20261122-101500

Models that differ in their attention alone are trained on as many tokens of a text: exact, exact
with queries that are the keys, a window, and LSH with 1 to 8 rounds. Each is tested on a part of
the text that it has not seen, as it was trained, with other numbers of rounds, and with its
attention zeroed; beside that stand the time of a token in its training, and the memory of a step.
A copy across more than a thousand tokens shows whether hashing finds what is far. The report's
first line says from which length on LSH is faster at equal bits per byte, or that it is not. A few
--steps at long --lengths, with a small --log_every, say what time and memory are there.

A text of 100,000,000 bytes is split as enwik8 is (90 M / 5 M / 5 M), any other 90 / 5 / 5 %. A
fresh folder gets results.jsonl, report.md, figures, and a folder with the
checkpoints of each training. SIGTERM and Ctrl-C save; --resume=FOLDER goes on, bit for bit.
A trained model writes on from a prompt in the program experiments.language_model.sample.
"""

SHARED_BY = "processes"
