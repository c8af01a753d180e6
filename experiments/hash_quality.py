"""How many hash rounds LSH attention needs: what it sees of full attention, on real activations.

    python -m experiments.hash_quality
    python -m experiments.hash_quality --data_files=shakespeare.txt --train_steps=1000
    python -m experiments.hash_quality --length=8192 --rounds=1,4,16 --chunk_sizes=64,128
    python -m experiments.hash_quality --resume=results/hash_quality-20261120-144900

A small causal model is trained for a moment on the bytes of a text. The queries, keys and values
that its layers make of bytes it has not seen are then hashed, and LSH attention is compared with
full attention: the share of the attention mass that it sees, the recall of the largest weights, the
error of its context, the sizes of the buckets. The first value of each list is the base; the others
are tried one at a time, each over --rounds. A fresh folder gets results.jsonl, report.md and two
figures as SVG and PNG. Ctrl-C keeps what is done; --resume measures what is missing, if anything
is, and writes report and figures again. The defaults take two minutes on two cores.
"""

from pathlib import Path

from absl import flags

from attnlab.bench import hash_quality_run
from attnlab.bench.hash_quality import CENTRING, MERGE, Settings
from attnlab.records import command_line
from attnlab.records.errors import Invalid
from attnlab.records.interrupts import interruptible

_HELP = {
    "rounds": "Numbers of hash rounds.",
    "chunk_sizes": "Chunk lengths.",
    "bucket_factors": "Numbers of buckets, in units of the usual 2 * length / chunk size.",
    "windows": "Slots of its own bucket that a query sees; 0 = as many as a chunk has.",
    "centering": f"What is subtracted before hashing: {', '.join(CENTRING)}.",
    "merge": f"How a pair that several rounds show counts: {', '.join(MERGE)}.",
    "length": "Bytes that are attended over, and trained on at a time.",
    "num_layers": "Layers of the model; all are measured.",
    "num_heads": "Heads of a layer.",
    "head_dim": "Width of a head.",
    "train_steps": "Steps of training; 0 = seeded weights.",
    "top_k": "Keys of a query whose recall is measured.",
    "target_mass": "Share of the mass that is called enough.",
    "seed": "Of the model, its training and the rotations.",
    "data_files": "Files of text. Without them: the project's own sources.",
}


def main(argv: list[str]) -> int:
    """Parses, builds the settings and runs; a bad flag ends in one line and status 2."""
    try:
        resume = command_line.resumed(argv)
        kept = Settings()
        if resume:
            flags_then = hash_quality_run.kept_rows(Path(resume))[0].flags
            kept = command_line.from_plain(Settings, flags_then)
        given = command_line.flags_of(kept, _HELP, resumes=True)
        if not command_line.parse(given, argv, __doc__):
            return 0
        settings = command_line.settings_of(given, kept)
        if resume and settings != kept:
            raise Invalid(f"--resume={resume} was made with other settings; leave these flags out")
        with interruptible():
            return hash_quality_run.run(settings, output_dir=Path(given.output_dir), resume=resume)
    except (flags.Error, Invalid) as error:
        return command_line.refuse("hash_quality", error)


if __name__ == "__main__":
    command_line.start(main)
