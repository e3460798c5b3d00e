"""Copies the topic orders into the topic orders-copy, exactly once: a streaming query with the sink of kbroker.

spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0 examples/pipelines/exactly_once_sink.py
"""

from pyspark.sql import SparkSession

from kbroker.pipeline.exactly_once import ExactlyOnceSink

BOOTSTRAP = "127.0.0.1:9092"
CHECKPOINT = "state/orders-copy"

spark = SparkSession.builder.appName("orders-copy").getOrCreate()
records = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", BOOTSTRAP)
    .option("kafka.isolation.level", "read_committed")
    .option("subscribe", "orders")
    .option("startingOffsets", "earliest")
    .option("includeHeaders", "true")
    .load()
)
sink = ExactlyOnceSink(BOOTSTRAP, name="orders-copy", directory=f"{CHECKPOINT}/sink", options={"topic": "orders-copy"})
query = (
    records.select("key", "value", "headers", "timestamp")
    .writeStream.foreachBatch(sink.write_batch)
    .option("checkpointLocation", CHECKPOINT)
    .trigger(availableNow=True)  # without it, the query runs until it is stopped
    .start()
)
query.awaitTermination()
