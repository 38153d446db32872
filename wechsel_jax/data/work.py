"""What is done with each part of the text, in this process or in another."""

import dataclasses
import json
from collections.abc import Mapping

import numpy as np
import tokenizers

from wechsel_jax.data.encoder import TRAIN, VALIDATION, Encoder, facts, side_of
from wechsel_jax.errors import UserError
from wechsel_jax.text.parts import Part


@dataclasses.dataclass(frozen=True)
class Task:
    """One part, and which of its documents are wanted.

    Attributes:
      number: of the part, over all sources.
      part: the text.
      progress: bytes of the sources that are done with once this part is.
      choice: (n,) uint8, for each document 0 (dropped), 1 (training) or 2 (validation); None: it depends on the text alone.
    """

    number: int
    part: Part
    progress: int
    choice: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Result:
    """What a part was made into.

    Attributes:
      counts: numbers that are added over all parts.
      data: what is appended to each file.
    """

    counts: Mapping[str, int]
    data: list[bytes]


@dataclasses.dataclass(frozen=True)
class Worker:
    """Turns parts into facts about their documents, or into tokens.

    Attributes:
      encoder: None: facts are wanted.
      validation_fraction: which share of the documents is held out, where a task does not say which.
    """

    encoder: Encoder | None
    validation_fraction: float = 0.0

    def __call__(self, part: Part, choice: np.ndarray | None) -> Result:
        """Returns facts: [`FACTS` of the documents, their number as uint64]; or tokens: [of training, of validation].

        Raises:
          UserError: a line is not what it should be, or the text has changed since the choice was made.
          MemoryError: there is too little.
        """
        try:
            return self._work(part, choice)
        except MemoryError:
            raise MemoryError(f"{part.name}: use fewer processes or a smaller max_document_bytes") from None

    def _work(self, part: Part, choice: np.ndarray | None) -> Result:
        documents, blank = part.documents()
        if self.encoder is None:
            return Result({"blank": blank}, [facts(documents).tobytes(), np.uint64(len(documents)).tobytes()])
        if choice is None:
            whole = np.full(len(documents), TRAIN, np.uint8)
            choice = side_of(facts(documents), self.validation_fraction) if self.validation_fraction else whole
        if len(choice) != len(documents):
            raise UserError(f"{part.name}: has changed while it was being read; run the command again")
        counts, data = {"blank": blank}, []
        for side, name in ((TRAIN, "train"), (VALIDATION, "validation")):
            chosen = [documents[i] for i in np.flatnonzero(choice == side).tolist()]
            tokens = self.encoder.tokens(chosen)
            counts[f"{name}_documents"] = len(chosen)
            counts[f"{name}_text_bytes"] = sum(len(document.encode()) for document in chosen)
            data.append(tokens.tobytes())
        return Result(counts, data)

    def pack(self) -> list[bytes]:
        """As bytes that can be sent to another process; `unpack` undoes it."""
        encoder = self.encoder
        fields = {"fraction": self.validation_fraction, "encodes": encoder is not None}
        if encoder is None:
            return [json.dumps(fields).encode(), b""]
        fields |= {"vocabulary_size": encoder.vocabulary_size, "end": encoder.end}
        return [json.dumps(fields).encode(), encoder.backend.to_str().encode()]

    @classmethod
    def unpack(cls, packed: list[bytes]) -> "Worker":
        fields = json.loads(packed[0])
        if not fields["encodes"]:
            return cls(None, fields["fraction"])
        backend = tokenizers.Tokenizer.from_str(packed[1].decode())
        return cls(Encoder(backend, fields["vocabulary_size"], fields["end"]), fields["fraction"])
