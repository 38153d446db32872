"""One source model, one new language, several initialisations, the same training for each: what `train.compare` runs.

Read `settings.py` (the fields, and what each method gets of them), then `run.py`, from text to report. Aside: `check.py`
(before anything is written), `inputs.py` (vectors and a helper), `tuning.py` (rates), `scoring.py` (tasks and fine-tuning),
`candidates.py` (a transfer by the method whose model learns fastest).
"""

from wechsel_jax.comparison.run import compare
from wechsel_jax.comparison.settings import default_config
from wechsel_jax.report.curves import BASELINE

__all__ = ["BASELINE", "compare", "default_config"]
