"""Logs of partitions, in Kafka's file format. Synchronous; never knows the cluster, the event loop or a socket."""
