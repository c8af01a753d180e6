"""Training: a loop of pure steps that a kill does not change, search, and what is made of results.

| file | what it holds |
| --- | --- |
| `loop` | `train`, which reads top to bottom |
| `objective`, `step` | what is minimized, as sums and counts; (state, batch) → (state, metrics) |
| `masked` | the objective of pre-training: masked tokens and following sentences |
| `classes` | the objective of classifiers: of sequences, tokens, spans |
| `attended` | the objective of attention that is looked at: REINFORCE, sources read evenly |
| `gradient_noise` | what gradients differ by from batch to batch |
| `pretrained` | a pre-trained BERT as a folder |
| `optimizers`, `schedules` | the papers' optimizers and learning rates, in optax |
| `parallel` | a step over several devices, under `jit` or `pmap` |
| `checkpoint`, `curve` | what a training keeps: orbax; sums, rows on disk and on a terminal |
| `stop` | signals |
| `decode` | greedy and beam search and sampling for every `Decoder` |
| `bleu`, `alignment` | sacrebleu, exact match, alignment error rate |
| `tuning` | a learning rate for each model, by trials: successive halving |
| `flags`, `run` | the flags that every training has; a training as a part of a run, TensorBoard |
| `training_curve`, `evaluation_figures` | figures of curves, alignments and scores by length |
"""
