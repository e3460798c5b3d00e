"""What a broker must do for its clients. Nothing here knows which broker it meets."""
