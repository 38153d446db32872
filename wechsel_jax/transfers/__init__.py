"""The main job, a source checkpoint to a target checkpoint: read `job` first; `settings` holds everything it may be told.

Nothing is imported here, so that the command line can list the settings without loading JAX.
"""
