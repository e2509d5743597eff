"""The score cache, in the process and in Redis; a score that several threads need is computed once."""
