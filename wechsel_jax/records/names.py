"""What the files of a run and of a transfer are named. Who writes or reads one takes its name from here."""

# In the workdir of a run; that of a comparison has settings of its own. A model's config.json is named by transformers instead.
CONFIG_FILE, METRICS_FILE, MACHINE_FILE, LOCK_FILE = "config.json", "metrics.jsonl", "machine.json", ".lock"
# Directories there: of checkpoints, one a step, of the trained model, and of models along the way, one a step.
CHECKPOINTS, EXPORT, STAGES = "checkpoints", "export", "stages"
# There too: which text and tokenizer the run began with.
FINGERPRINTS_FILE = "data/fingerprints.json"
# Of a comparison and of a TreLM training: which text it is of.
TEXTS_FILE = "texts.json"
# Of a fine-tuning with several seeds, beside their workdirs.
SEEDS_FILE = "seeds.json"
# The tokens of prepared text; beside them, and in each checkpoint: what they are of, with the checksums of the files.
TOKENS, MANIFEST = "tokens.bin", "manifest.json"
# Beside a model whose vocabulary was exchanged.
RECORD_FILE, PLAN_FILE = "transfer.json", "transfer_plan.npz"
