"""The files of a partition, in Kafka's own format. Synchronous; never knows the cluster, the loop or a socket."""
