"""Decisions of the controller as pure functions over the image: elections, placement, ISR changes, topic validation.

Never reads or writes the tree.
"""
