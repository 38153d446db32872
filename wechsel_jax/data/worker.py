"""The program that a worker process runs: parts of text in, tokens out, over one socket."""

import contextlib
import json
import signal
import sys
import traceback
from multiprocessing.connection import Connection

import numpy as np

from wechsel_jax.data.processes import FAILURE, FINE, MEMORY, MISTAKE, receive, send
from wechsel_jax.data.work import Worker
from wechsel_jax.errors import UserError
from wechsel_jax.program import mistake
from wechsel_jax.text.parts import Part


def serve(connection: Connection) -> None:
    """Does one task after the other until the other side goes away."""
    worker = Worker.unpack(receive(connection))
    while True:
        header, *part, choice = receive(connection)
        chosen = np.frombuffer(choice, np.uint8) if json.loads(header)["chosen"] else None
        try:
            result = worker(Part.unpack(part), chosen)
            message = [FINE, json.dumps(result.counts).encode(), *result.data]
        except MemoryError as error:
            message = [MEMORY, str(error).encode()]
        except Exception as error:
            line = mistake(error)
            message = [FAILURE, traceback.format_exc().encode()] if line is None else [MISTAKE, line.encode()]
        send(connection, message)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(UserError):
        serve(Connection(int(sys.argv[1])))
