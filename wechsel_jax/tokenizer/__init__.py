"""Tokenizer files: reading them safely, training new ones, appending tokens to one."""
