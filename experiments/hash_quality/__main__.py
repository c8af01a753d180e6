"""The command line of `hash_quality`."""

from pathlib import Path

from absl import flags

from attnlab.runs import command_line
from attnlab.runs.errors import Invalid
from attnlab.runs.interrupts import interruptible
from experiments import hash_quality
from experiments.hash_quality import run as hash_quality_run
from experiments.hash_quality.lines import CENTRING, MERGE, Settings

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
        if not command_line.parse(given, argv, hash_quality.__doc__):
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
