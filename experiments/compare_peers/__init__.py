"""attnlab beside other people's attention: time and memory of the same work, as ratios.

    launch/local compare_peers
    launch/local compare_peers --rows=sdpa,lsh --repeats=11
    launch/local compare_peers --resume=results/compare_peers-20261120-101500

A preset of `compare_lengths`: each of --rows stands for its flags, such as --mechanisms=exact,flax
--against=exact --ops_only. It needs the extra `compat` (torch, Keras, transformers,
reformer-pytorch). A fresh folder gets results.jsonl (every repetition), results.csv and report.md.
Ctrl-C keeps what is done and still writes the report; --resume=FOLDER measures only what is missing
or failed in that folder.
"""
