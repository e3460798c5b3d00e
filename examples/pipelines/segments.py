"""Counts the records of the topic orders by key, from the segment files of a data directory: no broker needs to run.

spark-submit examples/pipelines/segments.py data
"""

import sys

from pyspark.sql import SparkSession

from kbroker.pipeline import read_segments

(directory,) = sys.argv[1:]
spark = SparkSession.builder.appName("segments").getOrCreate()
records = read_segments(spark, directory, topics="orders", read_committed=True)
records.groupBy(records.key.cast("string").alias("key")).count().orderBy("key").show()
