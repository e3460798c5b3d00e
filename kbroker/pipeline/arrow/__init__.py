"""Arrow columns to record batches of magic 2 and back, a whole column at a time. Knows no Spark, no file, no socket."""
