"""Where the time of LSH attention goes: hash, sort, gather, attend, merge, over sequence length.

    launch/local profile_lsh
    launch/local profile_lsh --lengths=16384 --num_hashes=8 --passes=forward
    launch/local profile_lsh --chunk_size=32 --num_buckets=512 --lengths=8192,16384

Runs the compiled program of `lsh_attention`, hashing included, on the bytes of a text under JAX's
profiler, and reads from the trace which share of the time each stage takes. The report also has the
time without the profiler. A fresh folder gets results.jsonl, report.md and a figure of the shares
as SVG and PNG. Ctrl-C keeps what is done and still writes the report. The defaults take two minutes
on two cores.
"""
