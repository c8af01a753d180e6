"""Which cell of which published table is which number of ours: the one place that says it."""

from __future__ import annotations

from experiments.tables.beside import Beside
from experiments.tables.mapping.exact import EXACT
from experiments.tables.mapping.measured import MEASURED
from experiments.tables.mapping.recurrent import RECURRENT
from experiments.tables.mapping.self_attention import SELF_ATTENTION
from experiments.tables.trainings import SCALES as TRAINED_SCALES

__all__ = ["SCALES", "TABLES"]

SCALES = ("exact", *TRAINED_SCALES)
TABLES: dict[str, Beside] = EXACT | MEASURED | RECURRENT | SELF_ATTENTION
