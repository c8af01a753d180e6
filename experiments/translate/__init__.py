r"""Translation: RNNencdec, RNNsearch, Luong, NMTAttn and the Transformer on the same pairs.

    python -m experiments.translate
    python -m experiments.translate --models=rnn_search,transformer --steps=2000
    python -m experiments.translate --models=luong --set=luong.score=dot,concat --seeds=0,1,2
    python -m experiments.translate --data_files=train.de.gz,train.en.gz \
        --validation_files=val.de.gz,val.en.gz --test_files=test.de.gz,test.en.gz
    python -m experiments.translate --preset=gpu --tfds_name=wmt14_translate/de-en \
        --direction=de-en --data_dir=/data/tfds
    python -m experiments.translate --resume=results/translate-20261120-101500

Without data it learns to read dates: `3rd of March 2019` → `2019-03-03`, with RNNsearch and, beside
it, the same model with a fixed vector instead of attention. Each model is trained by its recipe in
experiments/translate/recipes.py and translates the test split with the parameters that did best on
the validation split. A fresh folder gets, for each model, checkpoints, metrics.jsonl and the
translations, and of all results.jsonl and report.md with figures of the training, of where each
model looks and of how it fares as sentences grow; of several seeds the mean and its standard
deviation stand beside each. SIGTERM and Ctrl-C save and report what is done; --resume=FOLDER goes
on, also after kill −9, as if nothing had happened. The defaults take a minute and a half on two
cores.
"""
