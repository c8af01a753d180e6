r"""Translation: RNNencdec, RNNsearch, Luong, NMTAttn and the Transformer on the same pairs.

    launch/local translate
    launch/local translate --models=rnn_search,transformer --steps=2000
    launch/local translate --models=luong --set=luong.score=dot,concat --seeds=0,1,2
    launch/local translate --data_files=train.de.gz,train.en.gz \
        --validation_files=val.de.gz,val.en.gz --test_files=test.de.gz,test.en.gz
    launch/local translate --preset=gpu --tfds_name=wmt14_translate/de-en \
        --direction=de-en --data_dir=/data/tfds
    launch/local translate --resume=results/translate-20261120-101500

Without data, two models learn to read dates (`3rd of March 2019` → `2019-03-03`): RNNsearch, and
RNNencdec, which has a fixed vector instead of attention. Each model is trained by its recipe in
experiments/translate/recipes.py and translates the test split with the parameters that did best on
the validation split, or with the mean of its last checkpoints (--average). A fresh folder gets
checkpoints, metrics.jsonl and translations of each model, and results.jsonl and report.md of all
models, with figures of the training, of where each model looks and of its scores by sentence
length. With several seeds the report also has the mean over them, ± half of its 95 % interval.
SIGTERM and Ctrl-C save and report what is done; --resume=FOLDER goes on, also after kill −9, and
the results are the same as without the interruption. The defaults take five minutes on two cores.
"""

SHARED_BY = "processes"
