"""The study `pretrain`: objectives × maskings × seeds, tested on the same masks."""

import dataclasses
import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import jax
import numpy as np

from attnlab.data.lines import read_documents
from attnlab.data.masking import MaskedPairs, Masking, fixed_batches, masked_batches, statistics
from attnlab.data.tokenizers import Tokenizer
from attnlab.models.bert import BertPretraining
from attnlab.runs import command_line, processes
from attnlab.runs.errors import Invalid
from attnlab.runs.markdown import markdown_table
from attnlab.runs.report import group
from attnlab.studies import command
from attnlab.studies.study import Cell, Evaluation, Row, Study, Training
from attnlab.training.loop import Task, Trained
from attnlab.training.masked import MaskedCrossEntropy
from attnlab.training.pretrained import Pretrained, make_tokenizer, read, write
from experiments import pretrain
from experiments.pretrain.settings import Settings

COUNTED = 50  # batches whose masks are counted for the report


Ids = list[list[np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A text in documents.

    Attributes:
      name: name of its file.
      digest: hash of the text and of the models to start from.
      training: token ids of each line of each document to train on.
      validation: token ids of those that are held out.
      tokenizer: tokenizer of the models to start from, or one trained on the training documents.
      starts: models to start from, by the seed that they were trained with.
    """

    name: str
    digest: str
    training: Ids
    validation: Ids
    tokenizer: Tokenizer
    starts: Mapping[int, Pretrained]

    def pairs(self, settings: Settings, masking: Masking | None = None) -> MaskedPairs:
        """The pairs of a training, or without a masking those that are held out, 80/10/10."""
        return MaskedPairs(
            self.validation if masking is None else self.training,
            self.tokenizer.vocab_size,
            settings.length,
            masking or Masking(),
            settings.max_predictions,
        )


def open_corpus(settings: Settings) -> Corpus:
    """The text of the settings, and the models to start from.

    Raises:
      Invalid: the text is missing, not text, or has too few documents; there are no models, or of
        another size or vocabulary, or none of a seed.
    """
    starts = _starts(settings)
    assert settings.input is not None
    path = Path(settings.input)
    to_train, to_validate = read_documents(path, settings.held_out)
    tokenizer = (
        next(iter(starts.values())).tokenizer
        if starts
        else make_tokenizer(
            settings.tokenizer,
            itertools.chain(*to_train),
            vocab_size=settings.vocab_size,
            cache_dir=settings.cache_dir,
        )
    )

    def encode_lines(documents: list[list[str]]) -> list[list[np.ndarray]]:
        """Token ids of every line: none is without, as tokenizers take texts as they are."""
        return [[np.array(tokenizer.encode(line), np.int32) for line in x] for x in documents]

    training, validation = encode_lines(to_train), encode_lines(to_validate)
    documents = to_train + to_validate
    total = hashlib.sha256("\n\n".join(map("\n".join, documents)).encode())
    for seed, model in starts.items():
        total.update(f"{seed} {model.digest}\n".encode())
    digest = total.hexdigest()
    corpus = Corpus(path.name, digest, training, validation, tokenizer, starts)
    for what, some in (("train", corpus.training), ("validate", corpus.validation)):
        try:  # says now what is wrong with them
            corpus.pairs(settings, Masking() if what == "train" else None)
        except Invalid as error:
            raise Invalid(
                f"--input={path}: --held_out={settings.held_out:g} leaves {len(some)} of its "
                f"{len(documents)} documents to {what} on; {error}"
            ) from None
    return corpus


def _starts(settings: Settings) -> dict[int, Pretrained]:
    if settings.init_from is None:
        return {}
    models: dict[int, Pretrained] = {}
    for model in read(Path(settings.init_from)):
        if (other := models.setdefault(model.seed, model)) is not model:
            raise Invalid(
                f"--init_from={settings.init_from}: {other.title} and {model.title} both have seed "
                f"{model.seed}; give the folder of one of them"
            )
        if model.sizes != settings.sizes():
            raise Invalid(
                f"--init_from={settings.init_from}: a model of {model.sizes}; give its sizes, with "
                "--max_length where --length is another"
            )
        kind = "bytes" if model.tokenizer.digest == "bytes" else "sentencepiece"
        words = model.tokenizer.vocab_size
        if kind != settings.tokenizer or (kind != "bytes" and words != settings.vocab_size):
            raise Invalid(
                f"--init_from={settings.init_from}: a checkpoint of another vocabulary, {kind} of "
                f"{words} ids; give --tokenizer and --vocab_size as it has them"
            )
    if len(models) > 1 and (missing := [seed for seed in settings.seeds if seed not in models]):
        raise Invalid(
            f"--init_from={settings.init_from}: no model of seed {missing[0]}; there are "
            f"{', '.join(map(str, models))}"
        )
    return models


class Pretrain(Study[Settings, Corpus]):
    """BERT on a text; each model is kept for `finetune`."""

    flags = Settings
    title = "BERT's pre-training"
    axes = {"objective": "objective", "masking": "masking"}
    scores = {"masked accuracy": ".1%", "masked nll": ".3f", "pair accuracy": ".1%"}
    curve = "masked_nll", "−log p (nats a masked token)"
    note = (
        "Scores are of the held-out documents, which all have the same pairs and masks, 80/10/10;"
        " nll is −log p in nats. `mlm` reads the same pairs, and leaves the second loss out."
    )
    shown = "length", "attention", "num_layers", "width", "steps", "batch_size"
    packages = "optax", "grain", "sentencepiece"
    open = staticmethod(open_corpus)

    def training(self, cell: Cell) -> Training:
        settings, corpus = self.settings, self.data
        config, attention = settings.sizes().build(corpus.tokenizer.vocab_size + 1)
        held_out = fixed_batches(corpus.pairs(settings), batch_size=settings.batch_size)
        validation = [self.part.of(batch) for batch in held_out]
        begun = corpus.starts.get(cell.seed, next(iter(corpus.starts.values()), None))
        task = Task(
            BertPretraining(config, attention),
            MaskedCrossEntropy(next_sentence=cell["objective"] == "mlm_nsp"),
            masked_batches(
                corpus.pairs(settings, _masking(cell)),
                batch_size=settings.batch_size,
                seed=cell.seed,
                part=self.part,
            ),
            lambda: validation,
            {"tokenizer": corpus.tokenizer.digest, "start": begun and begun.digest},
            streams=settings.sizes().streams,
            start=None if begun is None else lambda drawn: jax.tree.map(np.asarray, begun.params),
        )
        return Training(task, settings.optimizer(), settings.loop(seed=cell.seed))

    def evaluate(
        self, cell: Cell, training: Training, trained: Trained, place: Path
    ) -> Iterator[Evaluation]:
        settings, corpus = self.settings, self.data
        made = Pretrained(cell.title, cell.seed, settings.sizes(), corpus.tokenizer, trained.params)
        if processes.is_first():
            write(made, place)
        names = {"masked accuracy": "masked_accuracy", "masked nll": "masked_nll"}
        if cell["objective"] == "mlm_nsp":
            names["pair accuracy"] = "next_accuracy"
        pairs = corpus.pairs(settings, _masking(cell))
        batches = masked_batches(pairs, batch_size=settings.batch_size, seed=cell.seed)
        shares = statistics(itertools.islice(iter(batches), COUNTED), corpus.tokenizer.vocab_size)
        yield Evaluation(
            {name: trained.validation[x] for name, x in names.items()}, details={"shares": shares}
        )

    def sections(self, rows: Sequence[Row]) -> Iterator[str]:
        yield "## What was masked"
        yield (
            "Of the first batches: the share of tokens that is predicted, and what became of those."
            " A random word that is the same one by chance counts as that. Rows are short, so that"
            " 15 % in whole tokens is seldom 15 %."
        )
        names = ("predicted", "mask", "same", "random", "next")
        header = ["masking", "predicted", "[MASK]", "same", "random", "second segment follows"]
        shares = {
            masking: some[0].details["shares"]
            for masking, some in group(rows, lambda row: row.cell["masking"]).items()
        }
        yield markdown_table(
            header, [[x, *(f"{some[name]:.1%}" for name in names)] for x, some in shares.items()]
        )


def _masking(cell: Cell) -> Masking:
    return Masking(*map(int, cell["masking"].split("/")))


def main(argv: list[str]) -> int:
    """Parses the flags, trains and reports."""
    return command.main(argv, Pretrain, pretrain)


if __name__ == "__main__":
    command_line.start(main)
