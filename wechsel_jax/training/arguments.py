"""What stands behind the colon of `--config=configs/NAME.py:name=value,name=value`."""

from wechsel_jax.errors import UserError


def config_arguments(given: str, /, **known: str | tuple[str, ...]) -> dict[str, str]:
    """Reads the arguments of a file of settings.

    Args:
      given: "name=value" pairs with commas between them, or nothing.
      **known: every argument that the file knows, with what it is where it is not given; a tuple lists all that it may be,
        the default first.

    Returns:
      name -> value for all of them.

    Raises:
      UserError: a part is not name=value, has a name that the file does not know or a value that it does not take.
    """
    chosen = {name: value if isinstance(value, str) else value[0] for name, value in known.items()}
    for part in (part for part in given.split(",") if part):
        name, equals, value = part.partition("=")
        if not equals or name not in known:
            names = ", ".join(f"{name}=" for name in known)
            raise UserError(f"--config: {part!r} behind the colon is not known; expected some of {names}")
        if not isinstance(known[name], str) and value not in known[name]:
            raise UserError(f"--config: {part!r} behind the colon; expected {name} to be one of {', '.join(known[name])}")
        chosen[name] = value
    return chosen
