"""A fixed vector against attention as the source grows: Bahdanau 2014's Figure 2 on random words.

    launch/local length_effect
    launch/local length_effect --task=reversal --hidden_features=256
    launch/local length_effect --max_length=20 --lengths=5,10,20,40 --steps=1500
    launch/local length_effect --resume=results/length_effect-20261120-101500

Two models learn to copy words of random symbols, with the same widths and the same training:
RNNencdec, which puts the whole source into one vector, and RNNsearch, which looks at the source
again for every symbol that it writes. Then each copies words that it was not trained on, length by
length, also words longer than any in training. A fresh folder gets results.jsonl, report.md, one
figure, and checkpoints and metrics.jsonl of each model. SIGTERM and Ctrl-C save and
report what is done; --resume=FOLDER goes on. The defaults take nine minutes on two busy cores.
"""
