"""Metadata of the cluster: the tree that stores it, the image made from the tree, and the controller that changes it.

Never touches a log or a client connection: code that acts on a change listens to the image.
"""
