"""What a host gives its accelerators: pairs encoded a second, and checkpoints written and read.

    launch/local host_speed
    launch/local host_speed --data_files=train.de,train.en --num_workers=0,1,2
    launch/local host_speed --mib=256,1024 --output_dir=/mnt/bucket/runs

Sentence pairs become batches as in a training, by one thread or by worker processes, while nothing
else runs: no step can be fed faster. No pair is encoded twice, and starting workers is not timed.
Checkpoints of random float32 numbers are written into the folder of the run, as a training writes
its own, until they are on the disk, and read again, not from memory where the system lets go of it
(Linux). Without --data_files the pairs are dates, tokenized byte by byte, which says less. With
Multi30k it took three minutes on two busy cores.
"""
