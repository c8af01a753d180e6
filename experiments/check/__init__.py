"""Is an attention right, does a model see the future? The contracts that ours keep, for yours.

    launch/local check experiments/examples/decay.py:decay
    launch/local check exact lsh-2 'experiments/examples/decay.py:decay(rate=0.9)'
    launch/local check experiments/check/public.py:Nnx --vocab_size=32    # tokens -> logits
    launch/local check 'torch.nn.functional:scaled_dot_product_attention(is_causal=True)'
    launch/local check --public    # public attentions and models, as far as they are installed

Writes a folder with report.md (a table of contracts; of each that is broken the smallest
counterexample, and a line of Python that shows it again), results.jsonl (the same for programs),
and a figure of which pairs are seen. Ends with status 1 where a contract is broken. One contract
takes seconds: --contracts=causal. To write an attention: docs/guides/your_own.md.
"""
