"""Commands of `kbroker`, one module for each: options, calls, output. What several commands share is in `cli`."""
