"""What to cite: BibTeX of the paper that a method comes from, and of this software."""

import re

# As the papers' own pages and reference lists give them; fields that those do not give are left out.
_PAPERS = {
    "minixhofer-etal-2022-wechsel": {
        "type": "inproceedings",
        "title": "{WECHSEL}: Effective initialization of subword embeddings for cross-lingual transfer of monolingual "
        "language models",
        "author": "Minixhofer, Benjamin and Paischer, Fabian and Rekabsaz, Navid",
        "booktitle": "Proceedings of the 2022 Conference of the North American Chapter of the Association for Computational "
        "Linguistics: Human Language Technologies",
        "year": "2022",
        "pages": "3992--4006",
    },
    "dobler-de-melo-2023-focus": {
        "type": "inproceedings",
        "title": "{FOCUS}: Effective Embedding Initialization for Monolingual Specialization of Multilingual Models",
        "author": "Dobler, Konstantin and de Melo, Gerard",
        "booktitle": "Proceedings of the 2023 Conference on Empirical Methods in Natural Language Processing",
        "year": "2023",
        "pages": "13440--13454",
    },
    "liu-etal-2024-ofa": {
        "type": "inproceedings",
        "title": "{OFA}: A Framework of Initializing Unseen Subword Embeddings for Efficient Large-scale Multilingual "
        "Continued Pretraining",
        "author": 'Liu, Yihong and Lin, Peiqin and Wang, Mingyang and Sch{\\"u}tze, Hinrich',
        "booktitle": "Findings of the Association for Computational Linguistics: NAACL 2024",
        "year": "2024",
        "pages": "1067--1097",
    },
    "lee-etal-2025-salt": {
        "type": "misc",
        "title": "Semantic Aware Linear Transfer by Recycling Pre-trained Language Models for Cross-lingual Transfer",
        "author": "Lee, Seungyoon and Hong, Seongtae and Moon, Hyeonseok and Lim, Heuiseok",
        "year": "2025",
    },
    "goddard-fernandes-neto-2025-omp": {
        "type": "misc",
        "title": "Training-Free Tokenizer Transplantation via Orthogonal Matching Pursuit",
        "author": "Goddard, Charles and Fernandes Neto, Fernando",
        "year": "2025",
    },
    "ostendorff-rehm-2023-clp": {
        "type": "misc",
        "title": "Efficient Language Model Training through Cross-Lingual and Progressive Transfer Learning",
        "author": "Ostendorff, Malte and Rehm, Georg",
        "year": "2023",
        "eprint": "2301.09626",
        "archiveprefix": "arXiv",
    },
    "gee-etal-2022-fvt": {
        "type": "inproceedings",
        "title": "Fast Vocabulary Transfer for Language Model Compression",
        "author": "Gee, Leonidas and Zugarini, Andrea and Rigutini, Leonardo and Torroni, Paolo",
        "booktitle": "Proceedings of the 2022 Conference on Empirical Methods in Natural Language Processing: Industry Track",
        "year": "2022",
        "pages": "409--416",
    },
    "hewitt-2021-initializing": {
        "type": "misc",
        "title": "Initializing New Word Embeddings for Pretrained Language Models",
        "author": "Hewitt, John",
        "year": "2021",
    },
    "de-vries-nissim-2021-good": {
        "type": "inproceedings",
        "title": "As Good as New. How to Successfully Recycle {E}nglish {GPT}-2 to Make Models for Other Languages",
        "author": "de Vries, Wietse and Nissim, Malvina",
        "booktitle": "Findings of the Association for Computational Linguistics: ACL-IJCNLP 2021",
        "year": "2021",
        "pages": "836--846",
    },
    "zoph-etal-2016-transfer": {
        "type": "inproceedings",
        "title": "Transfer Learning for Low-Resource Neural Machine Translation",
        "author": "Zoph, Barret and Yuret, Deniz and May, Jonathan and Knight, Kevin",
        "booktitle": "Proceedings of the 2016 Conference on Empirical Methods in Natural Language Processing",
        "year": "2016",
    },
}
_WECHSEL, _SALT = "minixhofer-etal-2022-wechsel", "lee-etal-2025-salt"
# The baselines that a paper made up for its comparison are that paper's; anker mixes as WECHSEL does.
_OF_METHOD = {
    "wechsel": _WECHSEL,
    "anker": _WECHSEL,
    "wechsel_tfr": _WECHSEL,
    "full_rand": _WECHSEL,
    "focus": "dobler-de-melo-2023-focus",
    "ofa": "liu-etal-2024-ofa",
    "salt": _SALT,
    "multivariate": _SALT,
    "omp": "goddard-fernandes-neto-2025-omp",
    "clp": "ostendorff-rehm-2023-clp",
    "fvt": "gee-etal-2022-fvt",
    "mean": "hewitt-2021-initializing",
    "trans_inner": "de-vries-nissim-2021-good",
    "trans_inner_shuffle": "zoph-etal-2016-transfer",
}


def bibtex(method: str | None, version: str | None = None) -> str:
    """Returns BibTeX entries, with an empty line between them.

    Args:
      method: of the transfer, a name in `initializers.METHODS`; None, or one that is not known: the software alone.
      version: of wechsel-jax; left out where it is spelled like none.
    """
    software = {
        "type": "software",
        "title": "wechsel-jax: Bring a pretrained language model to a new language",
        "author": "{the wechsel-jax maintainers}",
        "year": "2026",
    }
    if version and re.fullmatch(r"[\w.!+-]{1,40}", version, re.ASCII):
        software["version"] = version
    key = _OF_METHOD.get(method or "")
    entries = [_entry(key, _PAPERS[key])] if key else []
    return "\n\n".join([*entries, _entry("wechsel-jax", software)])


def _entry(key: str, fields: dict[str, str]) -> str:
    lines = [f"  {name} = {{{value}}}," for name, value in fields.items() if name != "type"]
    return "\n".join([f"@{fields['type']}{{{key},", *lines, "}"])
