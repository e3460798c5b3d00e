"""One module for each API, named as its schema: `handle(context, request)`. Handlers never call each other."""
