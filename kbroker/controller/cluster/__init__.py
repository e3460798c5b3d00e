"""A broker's part in a ZooKeeper cluster: registration, controller election, and control requests in both directions.

Never imported by a single node.
"""
