"""What the cluster looks like and who decides: the metadata tree, the image made of it, and the controller.

Never touches a log or a connection: whoever must act on a change listens to the image.
"""
