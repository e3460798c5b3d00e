"""Bytes <-> messages: schemas, codecs, framing, record batches. Never does IO and knows no clock."""
