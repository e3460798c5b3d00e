"""One module for each API, named as its schema, with `handle(context, request)`. Handlers never call each other."""
