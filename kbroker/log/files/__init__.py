"""Files and directories: the only calls to the operating system, cached descriptors, checkpoints. Knows no batches."""
