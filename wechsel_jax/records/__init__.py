"""What was written down by a transfer, a run and a comparison: one schema each, one writer, one reader.

Read `transfer.py` first: what transfer.json holds. `run.py` is what a workdir of training holds (config.json, metrics.jsonl and
what lies beside them), `state.py` whether it is still going, `comparison.py` what ties several runs together; `scores.py` and
`embeddings.py` are files of results; `work.py` adds up what a transfer costs while it runs. Nothing here computes or words
anything: that is the business of `inspection` and of `report`.
"""

from wechsel_jax.records.comparison import ComparisonRecord, expand, read_comparison
from wechsel_jax.records.run import Evaluation, Phase, RunRecord, best_evaluation, encode_line, read_metrics, read_run
from wechsel_jax.records.state import FINISHED, RUNNING, STOPPED, seconds_per_step
from wechsel_jax.records.transfer import ORIGINS, Example, Finding, Mixture, TransferRecord

__all__ = [
    "FINISHED",
    "ORIGINS",
    "RUNNING",
    "STOPPED",
    "ComparisonRecord",
    "Evaluation",
    "Example",
    "Finding",
    "Mixture",
    "Phase",
    "RunRecord",
    "TransferRecord",
    "best_evaluation",
    "encode_line",
    "expand",
    "read_comparison",
    "read_metrics",
    "read_run",
    "seconds_per_step",
]
