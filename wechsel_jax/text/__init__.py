"""Text of any kind to documents, by one path for every verb.

Read `sources` first (what a name of text stands for), then `parts` (a source as documents, in bounded memory), then `documents`
(bytes to documents, and what is said of bad ones). `files` opens what is compressed, and reads lists line by line.
"""
