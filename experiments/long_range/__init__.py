"""Classification over long inputs: every mechanism as the attention of one encoder.

    launch/local long_range
    launch/local long_range --mechanisms=exact,window-16+exact,lsh-2 --seeds=0,1,2
    launch/local long_range --mechanisms=exact --starts=scratch,pretrained
    launch/local long_range --tasks=listops,retrieval --preset=gpu
    launch/local long_range --tasks=text --train_file=train.tsv --test_file=test.tsv
    launch/local long_range --tasks=text --tfds_name=imdb_reviews/plain_text
    launch/local long_range --resume=results/long_range-20261122-101500

The tasks of Long Range Arena (Tay et al. 2020) that need no data set, and one that reads yours:
ListOps by its grammar, texts as bytes (a label, a tab and a text in each line), and pairs of
documents that match if they hold the same key, in the place of its citations. Each model is trained
once for each seed, and tested with the parameters that did best on the validation split. The
report has accuracy, steps a second and the memory of a step beside the paper's table, whose
"Reformer" is another function. SIGTERM and Ctrl-C save; --resume=FOLDER goes on, bit for bit. The
preset `cpu` has ListOps of at most 256 tokens.
"""
